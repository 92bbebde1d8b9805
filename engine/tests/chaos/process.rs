//! The processes of nodes, seen from the program: start, signals, what they say. A node is this program again, or one
//! of the programs of tests/chaos, which speak the same language over ferry's bindings.

use crate::arena;
use crate::node;
use crate::support::Dice;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::Sender;

/// A line of a process, None for its end: the node, the epoch of the process, the line.
pub type Said = (usize, u64, Option<String>);

/// The languages of nodes, each with its program; none is this program.
pub struct Languages(Vec<(String, Option<String>)>);

impl Languages {
    /// Reads "c=PROGRAM;python=python3 PROGRAM", which may be empty.
    pub fn of(text: &str) -> Languages {
        let named = text.split_terminator(';').map(|language| {
            let (name, program) =
                language.split_once('=').unwrap_or_else(|| panic!("no program: {language}"));
            (name.to_owned(), Some(program.to_owned()))
        });
        Languages(std::iter::once(("rust".to_owned(), None)).chain(named).collect())
    }

    pub fn draw(&self, dice: &mut Dice) -> (String, Command) {
        let (name, program) = &self.0[dice.below(self.0.len() as u64) as usize];
        let own = std::env::current_exe().unwrap();
        let mut words = program.iter().flat_map(|program| program.split_whitespace());
        let mut command = words.next().map_or_else(|| Command::new(own), Command::new);
        command.args(words);
        (name.clone(), command)
    }
}

pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    errors: File,
}

impl Process {
    /// Starts a program as the node `number`, in a network namespace.
    pub fn start(
        mut command: Command,
        (number, epoch): (usize, u64),
        namespace: File,
        memory: &File,
        said: Sender<Said>,
    ) -> Process {
        let errors = arena::memfd(0);
        let fd = memory.as_raw_fd();
        command.env(node::ARENA, fd.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(errors.try_clone().unwrap());
        // SAFETY: system calls alone, on descriptors that live until the process has started.
        unsafe {
            command.pre_exec(move || {
                let entered = libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET);
                if entered != 0 || libc::fcntl(fd, libc::F_SETFD, 0) != 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = said.send((number, epoch, Some(line)));
            }
            let _ = said.send((number, epoch, None));
        });
        Process { child, input, errors }
    }

    /// Sends a command. A process that has died says so by itself.
    pub fn tell(&mut self, command: &str) {
        if let Some(input) = &mut self.input {
            let _ = input.write_all(format!("{command}\n").as_bytes());
        }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: no memory is involved; the process is not yet waited for.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    /// Returns what the process wrote to its standard error, and how it ended.
    pub fn last_words(&mut self) -> String {
        let mut text = String::new();
        let _ = self.errors.rewind();
        let _ = self.errors.read_to_string(&mut text);
        let end = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        format!("{end}: {}", text.trim())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
