//! Where panics of the user's code end.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs code of the user's that nobody waits for; its panic has been reported by the panic hook and ends here.
pub(crate) fn quietly(code: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(code)) {
        message_of(panic);
    }
}

/// The text of a panic. The payload is dropped here, and may panic again.
pub(crate) fn message_of(panic: Box<dyn Any + Send>) -> String {
    let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a panic without a message".to_owned(),
    };
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        // A payload whose destructor panics with another such payload could go on for ever.
        std::mem::forget(again);
    }
    message
}
