//! The programs of rivals: packages of their own below `rivals`, built at first use.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::parent::Peer;

/// Builds one, beside our own programs; `None`, with a word about it, if that is impossible here.
#[must_use]
pub fn rival(name: &'static str) -> Option<Peer> {
    let built = build(name);
    if let Err(error) = &built {
        eprintln!("without {name}: {error:#}");
    }
    built.ok().map(|program| Peer { name, command: vec![program.into()] })
}

fn build(name: &str) -> Result<PathBuf> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals").join(name).join("Cargo.toml");
    let program = env::current_exe()?;
    let target = program.parent().and_then(Path::parent).context("programs are in a target folder")?.join("rivals");
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "it cannot be built: {}", talk.lines().next_back().unwrap_or_default());
    Ok(target.join("release").join(format!("rival-{name}")))
}
