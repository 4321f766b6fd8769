//! Enqueues that may join a job which somebody else wants: what the process wants by one of them only its answer says.
//!
//! So the answer is heard whether or not the caller still waits. If it was lost, the enqueue is repeated for as long as
//! the process keeps its lease, which an id makes harmless: it has the same answer, or makes a job that is given up at
//! once. Whoever was told of an error had to reckon with that job.

use std::future::poll_fn;
use std::sync::Arc;

use super::{Interest, Interests, REST};
use crate::error::StoreError;
use crate::heart::rest;
use crate::id::{JobId, NodeId};
use crate::store::{Admitted, NewJob, Refused, Reply};

/// An enqueue under way that may join a job.
#[derive(Debug)]
pub(crate) struct Joining(Arc<Interests>);

impl Joining {
    pub(crate) fn new(all: &Arc<Interests>) -> Self {
        all.change(|held| held.joining += 1);
        Self(all.clone())
    }

    /// Enqueues jobs, each of which may join another.
    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Answers, StoreError> {
        let reply = Some(self.0.store.enqueue(jobs.clone()));
        let mut asked = Asked { all: self.0.clone(), jobs, reply };
        let answers = poll_fn(|cx| asked.reply.as_mut().expect("there until it answers").as_mut().poll(cx)).await;
        asked.reply = None;
        if answers.is_ok() {
            asked.jobs.clear();
        }
        answers
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        self.0.change(|held| held.joining -= 1);
    }
}

type Answers = Vec<Result<Admitted, Refused>>;

/// An enqueue of which the caller has not heard. It may drop this.
struct Asked {
    all: Arc<Interests>,
    jobs: Vec<NewJob>,
    /// What the store says, if that is still to come.
    reply: Option<Reply<Answers>>,
}

impl Drop for Asked {
    fn drop(&mut self) {
        let (jobs, reply) = (std::mem::take(&mut self.jobs), self.reply.take());
        if let Some(node) = jobs.first().and_then(|job| job.wanted_by) {
            self.all.begin(move |all| all.let_go(node, jobs, reply));
        }
    }
}

impl Interests {
    /// Hears what came of an enqueue that nobody waits for any more, and gives that up.
    async fn let_go(self: Arc<Self>, node: NodeId, jobs: Vec<NewJob>, reply: Option<Reply<Answers>>) {
        let (mut reply, mut pause) = (reply, REST.0);
        loop {
            if let Some(reply) = reply
                && let Ok(answers) = reply.await
            {
                let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
                for (id, answer) in ids.into_iter().zip(answers) {
                    if let Ok(admitted) = answer {
                        drop(Interest::new(&self, admitted.job(id)));
                    }
                }
                return;
            }
            // What a process wanted that has lost its lease ends with that.
            if !rest(&self.engine, pause).await || self.heart.node() != node {
                return;
            }
            pause = (pause * 2).min(REST.1);
            reply = Some(self.store.enqueue(jobs.clone()));
        }
    }
}
