//! Apalis on the same disk: a program of its own, since its SQLite is another one than ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

pub(crate) struct Rival(PathBuf);

impl Rival {
    /// Builds it, beside our own programs; `None`, with a word about it, if that is impossible here.
    pub(crate) fn build() -> Option<Self> {
        let built = build();
        if let Err(error) = &built {
            eprintln!("without apalis: {error:#}");
        }
        built.ok()
    }

    pub(crate) fn command(&self) -> Command {
        Command::new(&self.0)
    }

    /// What the rival's SQLite says about its durability.
    pub(crate) fn settings(&self, folder: &Path) -> Result<String> {
        let output = self.command().arg("settings").arg(folder).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}

fn build() -> Result<Rival> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("rivals/apalis/Cargo.toml");
    let program = std::env::current_exe()?;
    let target = program.parent().and_then(Path::parent).context("programs are in a target folder")?.join("rivals");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--locked", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .output()?;
    let talk = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "it cannot be built: {}", talk.lines().next_back().unwrap_or_default());
    Ok(Rival(target.join("release/rival-apalis")))
}
