//! A bell that wakes one task: rung by anybody, heard once however often it was rung.

use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug, Default)]
pub(crate) struct Bell(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    rung: bool,
    waker: Option<Waker>,
}

impl Bell {
    pub(crate) fn ring(&self) {
        let waker = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.rung = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn poll_rung(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.rung) {
            return Poll::Ready(());
        }
        let replaced = state.waker.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}
