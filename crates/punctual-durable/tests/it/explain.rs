use punctual::{Limits, Rate};
use punctual_durable::{Gate, Outcome};

use crate::bed::{HOUR, Say, on_every_store, say, wait};

#[test]
fn explain_names_the_gate_that_holds_a_job_back() {
    on_every_store(|bed| {
        bed.jobs.on(|say: Say, _| async move {
            std::future::pending::<()>().await;
            Ok(say.0)
        });
        let gate = |id| wait(bed.jobs.explain(id)).unwrap().unwrap().gate;
        let acme = bed.jobs.tenant("acme");
        wait(acme.set_limits(Limits::new().running_max(1))).unwrap();
        let later = wait(acme.after(HOUR).enqueue(say("later"))).unwrap();
        assert!(matches!(gate(later.id()), Gate::NotDue(_)));
        let first = wait(acme.now().enqueue(say("first"))).unwrap();
        assert_eq!(gate(first.id()), Gate::NoWorker);
        let node = wait(bed.jobs.start()).unwrap();
        bed.settle();
        assert_eq!(gate(first.id()), Gate::Running(node.id()));
        let second = wait(acme.now().enqueue(say("second"))).unwrap();
        bed.settle();
        assert_eq!(gate(second.id()), Gate::TenantLimit { running: 1, max: 1 });
        wait(acme.pause()).unwrap();
        assert_eq!(gate(second.id()), Gate::TenantPaused);
        wait(second.cancel()).unwrap();
        assert_eq!(gate(second.id()), Gate::Ended(Outcome::Cancelled));

        let slow = bed.jobs.tenant("slow");
        wait(slow.set_limits(Limits::new().rate(Rate::per_minute(1)))).unwrap();
        let [_, held] = ["a", "b"].map(|word| wait(slow.now().enqueue(say(word))).unwrap());
        bed.settle();
        assert!(matches!(gate(held.id()), Gate::Rate(_)));
        assert!(wait(bed.jobs.explain(punctual_durable::JobId::from_u128(1))).unwrap().is_none());
    });
}
