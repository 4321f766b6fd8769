//! As much of PostgreSQL's protocol as it takes to know which reply answers which request.
//!
//! Both directions are messages: a tag, the length of the rest, the rest; only a client's first has no tag. Before that
//! it may ask for encryption, also without a tag, and the answer is one byte. After a yes nothing can be read any more.
//! Each `Query` and each `Sync` is answered by messages that end in one `ReadyForQuery`, which says whether a
//! transaction is open; so is the first message. So the n-th `ReadyForQuery` ends the reply to the n-th such request.

use std::collections::HashMap;

/// Messages cut out of a stream.
#[derive(Debug, Default)]
pub(super) struct Messages {
    begun: Vec<u8>,
    /// What comes first has no tag.
    untagged: bool,
    /// So many bytes come before, which are no message.
    bare: usize,
}

/// One message, and where in the piece it ended.
pub(super) struct Message {
    pub(super) tag: u8,
    pub(super) body: Vec<u8>,
    end: usize,
}

/// What is said on a connection.
#[derive(Debug)]
pub(super) struct Talk {
    requests: Messages,
    replies: Messages,
    /// What was parsed, by the name it was given.
    statements: HashMap<Vec<u8>, Vec<u8>>,
    asked: u64,
    answered: u64,
    /// The server has agreed to encrypt.
    is_secret: bool,
    /// The reply with this number is to be lost, if it ends outside a transaction.
    lose: Option<u64>,
    /// What has come of it so far.
    held: Vec<u8>,
}

/// What to pass on of a piece from the server.
pub(super) enum Answer {
    /// So much now; what is missing is held back.
    Pass(Vec<u8>),
    /// So much, and then the reply to be lost was there in full.
    Lose(Vec<u8>),
}

impl Default for Talk {
    fn default() -> Self {
        Self {
            requests: Messages::of_client(),
            replies: Messages::default(),
            statements: HashMap::new(),
            asked: 0,
            answered: 0,
            is_secret: false,
            lose: None,
            held: Vec::new(),
        }
    }
}

impl Talk {
    /// How many requests there were, hello included.
    pub(super) const fn asked(&self) -> u64 {
        self.asked
    }

    /// Whether it is encrypted.
    pub(super) const fn is_secret(&self) -> bool {
        self.is_secret
    }

    /// Whether something was asked, and not answered in full.
    pub(super) const fn is_under_way(&self) -> bool {
        self.answered < self.asked
    }

    /// The client says something. True if it asks for SQL that has these words.
    pub(super) fn asks(&mut self, piece: &[u8], words: Option<&str>) -> bool {
        let mut found = false;
        if self.is_secret {
            return found;
        }
        for Message { tag, body, .. } in self.requests.take(piece) {
            if tag == ENCRYPT {
                self.replies.bare += 1;
            }
            let mut fields = body.split(|&byte| byte == 0);
            let sql = match tag {
                b'Q' => Some(&body),
                // A portal, and the statement it is for.
                b'B' => fields.nth(1).and_then(|name| self.statements.get(name)),
                _ => None,
            };
            let words = words.filter(|_| !found).map(str::as_bytes);
            if words.zip(sql).is_some_and(|(words, sql)| sql.windows(words.len()).any(|part| part == words)) {
                found = true;
                debug_assert!(self.lose.is_none(), "one reply is lost at a time");
                self.lose = Some(self.asked + 1);
            }
            if tag == b'P' {
                let name = fields.next().unwrap_or_default().to_vec();
                self.statements.insert(name, body);
            }
            self.asked += u64::from(matches!(tag, FIRST | b'Q' | b'S'));
        }
        found
    }

    /// The server says something.
    pub(super) fn answers(&mut self, piece: &[u8]) -> Answer {
        self.is_secret |= self.replies.bare > 0 && piece.first() == Some(&YES);
        if self.is_secret {
            return Answer::Pass(piece.to_vec());
        }
        let (mut pass, mut from) = (Vec::new(), 0);
        for Message { tag, body, end } in self.replies.take(piece) {
            let is_last = tag == b'Z';
            self.answered += u64::from(is_last);
            if is_last && self.lose == Some(self.answered) {
                if body == b"I" {
                    return Answer::Lose(pass);
                }
                // The transaction goes on, and so does the wait for its end.
                self.lose = Some(self.answered + 1);
                pass.append(&mut self.held);
                pass.extend_from_slice(&piece[from..end]);
                from = end;
            } else if is_last && self.lose == Some(self.answered + 1) {
                pass.extend_from_slice(&piece[from..end]);
                from = end;
            }
        }
        let holds = self.lose == Some(self.answered + 1);
        (if holds { &mut self.held } else { &mut pass }).extend_from_slice(&piece[from..]);
        Answer::Pass(pass)
    }
}

/// Stands for the tag of a client's first message, and of what may come before it: a wish for TLS, or for GSSAPI.
const FIRST: u8 = 0;
const ENCRYPT: u8 = 1;
const ENCRYPTION: [[u8; 4]; 2] = [80_877_103_u32.to_be_bytes(), 80_877_104_u32.to_be_bytes()];

/// The server's answer to such a wish for TLS.
const YES: u8 = b'S';

impl Messages {
    /// Those of a client, the first without a tag.
    pub(super) fn of_client() -> Self {
        Self { untagged: true, ..Self::default() }
    }

    /// The messages that this piece completes.
    pub(super) fn take(&mut self, piece: &[u8]) -> Vec<Message> {
        let mut messages = Vec::new();
        // Where the piece begins, seen from what has begun before it.
        let before = self.begun.len();
        self.begun.extend_from_slice(piece);
        let mut from = self.bare.min(self.begun.len());
        self.bare -= from;
        while let Some((tag, start, end)) = self.next(from) {
            let body = self.begun[start..end].to_vec();
            let is_wish = tag == FIRST && ENCRYPTION.iter().any(|wish| *wish == body[..]);
            self.untagged = is_wish;
            messages.push(Message { tag: if is_wish { ENCRYPT } else { tag }, body, end: end - before });
            from = end;
        }
        self.begun.drain(..from);
        messages
    }

    /// The tag of the message at `from`, and where its body begins and ends, if it is all there.
    fn next(&self, from: usize) -> Option<(u8, usize, usize)> {
        let rest = &self.begun[from..];
        let tagged = usize::from(!self.untagged);
        let length: [u8; 4] = rest.get(tagged..tagged + 4)?.try_into().ok()?;
        let length = usize::try_from(u32::from_be_bytes(length)).ok()?.max(4);
        let tag = if self.untagged { FIRST } else { rest[0] };
        let end = tagged + length;
        (end <= rest.len()).then_some((tag, from + tagged + 4, from + end))
    }
}
