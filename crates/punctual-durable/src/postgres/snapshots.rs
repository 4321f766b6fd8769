//! Who holds vacuum up: the transaction whose snapshot, or whose own writing, has been going on longest.
//!
//! Rows that queues leave behind cannot be cleaned away while somebody may still see them, so everything slows down for
//! a transaction that has nothing to do with it.

use std::time::Duration;

use super::Shared;
use super::error::Fault;
use super::rows::Reader;

/// What is held for longer than this is warned of.
const LONG: Duration = Duration::from_secs(300);

const WHAT: &str = "ask for the oldest snapshot";

/// Of other databases nothing is held up. Of other users only those who may see it see it; the rest of such rows is
/// null.
const OLDEST: &str = "
    SELECT greatest(0, extract(epoch FROM clock_timestamp() - h.began) * 1000000)::bigint, h.holder
    FROM (
        SELECT xact_start, format('process %s of %s', pid, usename) FROM pg_stat_activity
        WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND backend_type = 'client backend'
        AND datname = current_database() AND pid <> pg_backend_pid()
        UNION ALL
        SELECT prepared, format('prepared transaction %s of %s', gid, owner) FROM pg_prepared_xacts
        WHERE database = current_database()
    ) AS h (began, holder)
    WHERE h.began IS NOT NULL ORDER BY h.began LIMIT 1";

/// A transaction that holds vacuum up.
#[derive(Debug)]
struct Held {
    age: Duration,
    holder: String,
}

impl Held {
    fn is_long(&self) -> bool {
        self.age > LONG
    }
}

impl Shared {
    pub(super) async fn oldest_snapshot(&self) -> Result<Option<Duration>, Fault> {
        Ok(self.oldest_held().await?.map(|held| held.age))
    }

    /// Says so, if one is held for long.
    pub(super) async fn warn_of_snapshot(&self) -> Result<(), Fault> {
        if let Some(held) = self.oldest_held().await?
            && held.is_long()
        {
            let Held { age, holder } = held;
            tracing::warn!(target: "punctual", ?age, holder, "a transaction holds up vacuum");
        }
        Ok(())
    }

    async fn oldest_held(&self) -> Result<Option<Held>, Fault> {
        let rows = self.line.say(WHAT, OLDEST, &[]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let mut row = Reader::new(WHAT, row);
        Ok(Some(Held { age: Duration::from_micros(row.number()?), holder: row.next()? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_minutes_are_not_warned_of_and_more_are() {
        let is_long = |seconds| Held { age: Duration::from_secs(seconds), holder: String::new() }.is_long();
        assert_eq!([60, 300, 301].map(is_long), [false, false, true]);
    }
}
