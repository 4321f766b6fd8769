//! On a clock of the runtime's own, which a test can hold.

use super::*;
use crate::id::JobId;
use crate::signals::Listener;
use crate::store::NewJob;
use crate::time::Timestamp;

const NODE: NodeId = NodeId::from_u64(1);

fn mail(room: usize) -> Vec<(String, usize)> {
    vec![("mail".to_owned(), room)]
}

fn offering(max: usize, room: usize) -> (Signals, Listener) {
    let signals = Signals::new();
    let listener = signals.listen(NODE);
    listener.offer(0, max, mail(room));
    (signals, listener)
}

/// What can be had at once.
fn take(signals: &Signals, kind: &str, count: usize) -> Option<Place> {
    pollster::block_on(signals.places(kind, count))
}

fn job(number: u128) -> Record {
    Record::new(NewJob::new(JobId::from_u128(number), "mail"), Timestamp::from_micros(0))
}

#[test]
fn no_more_is_taken_than_was_offered() {
    let (signals, listener) = offering(3, 2);
    assert!(take(&signals, "print", 1).is_none() && take(&signals, "mail", 3).is_none());
    let place = take(&signals, "mail", 2).unwrap();
    assert_eq!((place.node(), listener.places()), (NODE, 2));
    assert!(take(&signals, "mail", 1).is_none(), "there is no room for this kind");
    listener.offer(0, 3, mail(9));
    let other = take(&signals, "mail", 1).unwrap();
    assert!(take(&signals, "mail", 1).is_none(), "there is no room at all");
    place.give_back();
    other.give_back();
    assert_eq!(listener.places(), 0);
    listener.ask(false);
    assert!(take(&signals, "mail", 1).is_none(), "it asks for itself");
}

/// C40: a node counted its free workers, a place of its last offer was taken, and then it offered what it had counted:
/// so the same worker twice. Whatever it says it could run, the places that are taken at that moment are no more to be
/// had.
#[test]
fn a_place_that_is_taken_while_the_node_counts_is_not_offered_again() {
    let (signals, listener) = offering(1, 1);
    let place = take(&signals, "mail", 1).unwrap();
    listener.offer(0, 1, mail(1));
    assert!(take(&signals, "mail", 1).is_none());
    place.give(vec![job(7)]);
    listener.offer(0, 1, mail(1));
    assert!(take(&signals, "mail", 1).is_none(), "it was given, and the node has yet to hear of it");
    listener.heard();
    listener.offer(0, 1, mail(1));
    assert!(take(&signals, "mail", 1).is_some());
}

#[test]
fn a_place_counts_until_the_node_has_heard() {
    let (signals, listener) = offering(1, 1);
    take(&signals, "mail", 1).unwrap().give(vec![job(7)]);
    assert_eq!(listener.places(), 1);
    let heard = listener.heard();
    assert_eq!((heard.given, heard.is_unsure, listener.places()), (vec![job(7)], false, 0));
}

#[test]
fn whoever_was_told_of_work_is_given_nothing() {
    let (signals, listener) = offering(1, 1);
    signals.ready();
    assert!(take(&signals, "mail", 1).is_none());
    listener.heard();
    assert!(take(&signals, "mail", 1).is_some());
}

#[test]
fn a_place_of_which_nothing_is_said_is_in_doubt() {
    let (signals, listener) = offering(1, 1);
    drop(take(&signals, "mail", 1));
    let heard = listener.heard();
    assert_eq!((heard.given.len(), heard.is_unsure, listener.places()), (0, true, 0));
    // And of a node that has gone meanwhile nobody asks.
    listener.offer(0, 1, mail(1));
    let place = take(&signals, "mail", 1).unwrap();
    drop(listener);
    place.give(vec![job(7)]);
}

/// On a clock of tokio's that stands still unless everybody waits.
#[tokio::test(start_paused = true)]
async fn an_offer_that_is_to_come_is_waited_for_and_not_for_long() {
    let (signals, listener) = offering(1, 1);
    listener.ask(true);
    let begun = tokio::time::Instant::now();
    assert!(signals.places("mail", 1).await.is_none());
    assert_eq!(begun.elapsed(), PATIENCE);
    let offer = async { listener.offer(0, 1, mail(1)) };
    let (place, ()) = tokio::join!(signals.places("mail", 1), offer);
    assert!(place.is_some() && begun.elapsed() == PATIENCE);
}
