//! Renders documents page by page. Each page takes a sheet of paper, so that one can hold it up and count.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, watch};

/// Clones share one press.
#[derive(Clone)]
pub(crate) struct Press {
    paper: Arc<Semaphore>,
    rendered: Arc<AtomicUsize>,
    rendering: watch::Sender<usize>,
}

impl Press {
    pub(crate) fn without_paper() -> Self {
        Self { paper: Arc::new(Semaphore::new(0)), rendered: Arc::default(), rendering: watch::Sender::new(0) }
    }

    pub(crate) fn with_endless_paper() -> Self {
        let press = Self::without_paper();
        press.add_paper(Semaphore::MAX_PERMITS);
        press
    }

    pub(crate) fn add_paper(&self, sheets: usize) {
        self.paper.add_permits(sheets);
    }

    /// How many pages were rendered.
    pub(crate) fn rendered(&self) -> usize {
        self.rendered.load(Ordering::SeqCst)
    }

    /// How many documents are being rendered.
    pub(crate) fn rendering(&self) -> usize {
        *self.rendering.borrow()
    }

    pub(crate) async fn until_rendering(&self, documents: usize) {
        let mut rendering = self.rendering.subscribe();
        rendering.wait_for(|&now| now == documents).await.expect("the press is not dropped while it is used");
    }

    pub(crate) fn begin(&self, tenant: String, pages: u32) -> Document {
        self.rendering.send_modify(|documents| *documents += 1);
        Document { press: self.clone(), tenant, page: 0, pages }
    }
}

/// A document on the press; when it is dropped, finished or not, the work has stopped.
pub(crate) struct Document {
    press: Press,
    tenant: String,
    page: u32,
    pages: u32,
}

impl Document {
    pub(crate) async fn next_page(&mut self) -> Option<String> {
        if self.page == self.pages {
            return None;
        }
        self.press.paper.acquire().await.expect("paper is never taken away").forget();
        self.page += 1;
        self.press.rendered.fetch_add(1, Ordering::SeqCst);
        Some(format!("{}, page {}\n", self.tenant, self.page))
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        self.press.rendering.send_modify(|documents| *documents -= 1);
    }
}
