//! A node in a process of its own, to be told what to do, and to be ill-treated.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use punctual::Clock;

/// No answer takes as long as this, on any machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// A process. It is killed when this is dropped.
pub(crate) struct Process {
    child: Child,
    orders: ChildStdin,
    said: Receiver<String>,
    /// What it said and nobody asked for yet.
    unheard: VecDeque<String>,
    errors: PathBuf,
}

impl Process {
    /// Starts one, and waits until it has the store open.
    pub(crate) fn start(url: &str, schema: &str, lease: Duration, skew: i64, errors: PathBuf) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cluster_node"));
        command.args([url, schema, &lease.as_millis().to_string(), &skew.to_string()]);
        let mut child = command
            // What it says last fits on a screen.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors).unwrap())
            .spawn()
            .unwrap();
        let (tell, said) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| tell.send(line)));
        let orders = child.stdin.take().unwrap();
        let mut process = Self { child, orders, said, unheard: VecDeque::new(), errors };
        process.hear("ready");
        process
    }

    /// The name that the store and the witnesses know it by.
    pub(crate) fn name(&self) -> String {
        format!("process {}", self.child.id())
    }

    /// Tells it to do something.
    pub(crate) fn tell(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    /// Tells it to do something, and waits for the line that begins with this word; answers the words after it.
    pub(crate) fn ask(&mut self, order: &str, word: &str) -> Vec<String> {
        self.tell(order);
        self.hear(word)
    }

    /// Waits for a line that begins with this word; answers the words after it. Other lines are kept for others to
    /// hear.
    pub(crate) fn hear(&mut self, word: &str) -> Vec<String> {
        self.hear_within(word, PATIENCE).unwrap_or_else(|| {
            let errors = std::fs::read_to_string(&self.errors).unwrap_or_default();
            let lines: Vec<&str> = errors.lines().collect();
            let tail = &lines[lines.len().saturating_sub(20)..];
            panic!("{} did not say {word:?}; it said {:?}, and last\n{}", self.name(), self.unheard, tail.join("\n"))
        })
    }

    /// The same; `None` if it does not come in time.
    pub(crate) fn hear_within(&mut self, word: &str, patience: Duration) -> Option<Vec<String>> {
        let clock = Clock::system();
        let until = clock.now() + patience;
        let is_it = |line: &String| line.split(' ').next() == Some(word);
        let rest = |line: String| line.split(' ').skip(1).map(str::to_owned).collect();
        if let Some(at) = self.unheard.iter().position(is_it) {
            return self.unheard.remove(at).map(rest);
        }
        loop {
            let line = self.said.recv_timeout(until.saturating_duration_since(clock.now())).ok()?;
            if is_it(&line) {
                return Some(rest(line));
            }
            self.unheard.push_back(line);
        }
    }

    /// All lines with this word that it has said up to now; answers the words after it.
    pub(crate) fn heard(&mut self, word: &str) -> Vec<Vec<String>> {
        std::iter::from_fn(|| self.hear_within(word, Duration::ZERO)).collect()
    }

    /// Begins to work; answers which node it is.
    pub(crate) fn work(&mut self) -> u64 {
        self.ask("start", "started")[0].parse().unwrap()
    }

    pub(crate) fn status(&mut self) -> Status {
        let said = self.ask("status", "status");
        let numbers: Vec<u64> = said.iter().map(|word| word.parse().unwrap()).collect();
        let [node, complaints, wall] = numbers.try_into().unwrap();
        Status { node, complaints, wall }
    }

    /// Kills it: `kill -9`.
    pub(crate) fn kill(mut self) -> String {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.name()
    }

    /// Stops it where it is; it notices nothing.
    pub(crate) fn freeze(&self) {
        self.signal("STOP");
    }

    /// Lets it go on.
    pub(crate) fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let order = format!("kill -{signal} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &order]).status().unwrap().success(), "{order}");
    }

    /// Lets it end in good order; answers how many runs it gave back.
    pub(crate) fn stop(mut self, grace: Duration) -> usize {
        let said = self.ask(&format!("stop {}", grace.as_millis()), "stopped");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{} ended with {status}", self.name());
        said[0].parse().unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a process says of itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Status {
    /// Which node it is; another one after its lease was lost.
    pub(crate) node: u64,
    /// How often the store or the node complained.
    pub(crate) complaints: u64,
    /// What it takes for the time, in seconds.
    pub(crate) wall: u64,
}
