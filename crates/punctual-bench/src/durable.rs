//! Durable jobs, measured: what is done (`works`), where (a [`Place`]), by whom (children of one program), and what
//! comes out of it (`table`).

pub mod meter;
pub mod parent;
pub mod rival;
pub mod table;
pub mod wait;
pub mod work;
pub mod works;

use anyhow::Result;
use punctual_durable::Jobs;

/// Where a sample has its stores: a folder, or a server.
pub trait Place {
    /// Opens the store of that name, which is empty the first time.
    ///
    /// # Errors
    /// If it cannot be opened.
    fn open(&self, name: &str) -> Result<Jobs>;

    /// The first process of the server, whose CPU time counts too.
    fn server(&self) -> Option<u32>;

    /// Waits until what was written so far is where it stays: so that it is not written beside what is measured next.
    ///
    /// # Errors
    /// If the server says no.
    fn settle(&self) -> Result<()> {
        Ok(())
    }
}
