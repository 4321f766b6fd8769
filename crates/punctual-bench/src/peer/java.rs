//! Java's peers: compiled from `java/` when there is a compiler, run as child processes like everybody else.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::Traits;

const BENCH: &str = include_str!("../../java/Bench.java");
const NETTY: &str = include_str!("../../java/Netty.java");

const fn java(name: &'static str, takes: bool) -> Traits {
    Traits { name, fires: true, takes, delays: true, jobs: false, java: true }
}

const STANDARD: [Traits; 3] = [java("java-delayqueue", true), java("java-stpe", true), java("java-stpe-remove", true)];
const NETTY_TIMER: Traits = java("netty", false);

/// The compiled classes; gone when dropped.
#[derive(Debug)]
pub(crate) struct Classes {
    folder: PathBuf,
    netty: Option<PathBuf>,
}

impl Classes {
    /// Compiles them. `None` without a Java compiler.
    ///
    /// # Errors
    /// If there is a compiler and it refuses.
    pub(crate) fn compile() -> Result<Option<Self>> {
        let found = |tool| Command::new(tool).arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if found("java").is_err() || found("javac").is_err() {
            return Ok(None);
        }
        let folder = env::temp_dir().join(format!("punctual-bench-{}", process::id()));
        fs::create_dir_all(&folder).context("a folder for Java's classes")?;
        let classes = Self { folder, netty: find_netty() };
        let mut sources = vec![classes.folder.join("Bench.java")];
        fs::write(&sources[0], BENCH)?;
        if classes.netty.is_some() {
            sources.push(classes.folder.join("Netty.java"));
            fs::write(&sources[1], NETTY)?;
        }
        let compiled = Command::new("javac").arg("-cp").arg(classes.path()).args(&sources).status()?;
        ensure!(compiled.success(), "javac refused the benchmark's sources");
        Ok(Some(classes))
    }

    /// The peers these classes hold.
    pub(crate) fn peers(&self) -> impl Iterator<Item = Traits> {
        STANDARD.into_iter().chain(self.netty.iter().map(|_| NETTY_TIMER))
    }

    /// The command that measures on a fixed heap, so that growing it is not measured; the case's arguments follow.
    pub(crate) fn command(&self, peer: &str) -> Command {
        let mut command = Command::new("java");
        command.args(["-Xms6g", "-Xmx6g", "-XX:+UseG1GC", "-cp"]).arg(self.path()).args(["Bench", peer]);
        command
    }

    fn path(&self) -> String {
        let jar = self.netty.iter().map(|jar| format!(":{}", jar.display()));
        format!("{}{}", self.folder.display(), jar.collect::<String>())
    }
}

impl Drop for Classes {
    fn drop(&mut self) {
        // A folder left behind in the temporary directory harms nobody.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The jar named by `NETTY_JAR`, or the one of Debian's libnetty-java.
fn find_netty() -> Option<PathBuf> {
    let named = env::var_os("NETTY_JAR").map(PathBuf::from);
    let usual = ["netty-common.jar", "netty-all.jar", "netty.jar"].map(|jar| Path::new("/usr/share/java").join(jar));
    named.into_iter().chain(usual).find(|jar| jar.is_file())
}
