//! Clients that send anything: none of them crashes its process at the server, and others do not notice.

#![allow(clippy::macro_metavars_in_unsafe)] // The macro is for these programs alone.
#![allow(dead_code)] // Other tests use more of what they share.

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use gpuremote_describe::{Api, Function, Length, Type, Way};
use gpuremote_wire::{session_calls, Call, Encoder, Hello, Kind, Reply, Welcome, TOKEN_BYTES};
use support::driver::Driver;
use support::{program, role, wait, Server, PATIENCE};

/// How many clients, and how many calls of each.
const CLIENTS: u64 = 150;
const CALLS: u64 = 60;

/// Numbers that look random and are the same in each run (SplitMix64; Steele, Lea and Flood, OOPSLA 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number that is likely to mean something: a handle that was given or not, a small one, a huge one, or any.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 | 1 => 0x6e00_0000_0000_0000 | self.below(12) << 40 | self.below(6),
            2..=4 => self.below(5),
            5 => u64::MAX - self.below(3),
            6 => 1 << self.below(64),
            _ => self.next(),
        }
    }

    /// Bytes that no client of this version sends.
    fn nonsense(&mut self) -> Vec<u8> {
        (0..self.below(100)).map(|_| self.next() as u8).collect()
    }

    /// A handle: mostly one of this kind, whether there is such an object or not.
    fn handle(&mut self, api: &Api, name: &str, mostly: u64) -> u64 {
        let kind = api.handles.iter().position(|(kind, _)| kind == name).unwrap_or(0) as u64;
        if self.below(mostly) == 0 {
            return self.number();
        }
        0x6e00_0000_0000_0000 | kind << 40 | (1 + self.below(3))
    }

    /// Arguments as a client lays them out, with values that none has. New numbers of the wrong kind, and arrays that are too long, end a session,
    /// so they are rare.
    fn arguments(&mut self, api: &Api, function: &Function) -> Vec<u8> {
        let is_length = |name: &str| {
            function.arguments.iter().any(|argument| {
                let (Type::In(_, length) | Type::InHandles(_, length) | Type::Out(_, length)) = &argument.r#type else { return false };
                matches!(length, Length::Argument(_, of) if of == name)
            })
        };
        let (mut encoder, mut lengths) = (Encoder::default(), BTreeMap::new());
        for argument in &function.arguments {
            match &argument.r#type {
                Type::Scalar(scalar) => {
                    let value = if is_length(&argument.name) && self.below(40) > 0 { self.below(20) } else { self.number() };
                    lengths.insert(argument.name.as_str(), value);
                    put(&mut encoder, scalar, value);
                }
                Type::Handle(kind) | Type::Free(kind) => encoder.u64(self.handle(api, kind, 4)),
                Type::New(kind) => encoder.u64(self.handle(api, kind, 100)),
                Type::Out(..) => encoder.u8(self.below(2) as u8),
                _ => {}
            }
        }
        for argument in &function.arguments {
            let (scalar, length) = match &argument.r#type {
                Type::In(scalar, length) => (scalar.as_str(), length),
                Type::InHandles(_, length) => ("u64", length),
                Type::Text => {
                    let text = ["", "vector_add", "\0", "a name that nothing has"][self.below(4) as usize];
                    encoder.bytes_counted(text.as_bytes());
                    continue;
                }
                _ => continue,
            };
            let count = match length {
                Length::Fixed(count) => *count as u64,
                Length::Argument(times, name) => lengths.get(name.as_str()).copied().unwrap_or(0).saturating_mul(*times as u64),
            };
            encoder.u8(1);
            for _ in 0..count.min(100) {
                let value = self.number();
                put(&mut encoder, scalar, value);
            }
        }
        encoder.bytes().to_vec()
    }
}

fn put(encoder: &mut Encoder, scalar: &str, value: u64) {
    match scalar {
        "u8" | "i8" => encoder.u8(value as u8),
        "u16" | "i16" => encoder.u16(value as u16),
        "u32" | "i32" => encoder.u32(value as u32),
        "f32" => encoder.f32(value as f32),
        _ => encoder.u64(value),
    }
}

/// The calls that give a client a context, which most others need.
fn opening(api: &Api) -> Vec<(u16, Vec<u8>)> {
    let number = |name: &str| api.functions.iter().position(|function| function.name == name).unwrap() as u16;
    let context: u64 = 0x6e00_0000_0000_0001;
    let retain = [&context.to_le_bytes()[..], &0i32.to_le_bytes()].concat();
    vec![
        (number("cuInit"), vec![0; 4]),
        (number("cuDevicePrimaryCtxRetain"), retain),
        (number("cuCtxSetCurrent"), context.to_le_bytes().to_vec()),
    ]
}

/// Sends calls until the server has had enough, or all are sent. What it answers is read and forgotten.
fn attack(host: &str, api: &Api, random: &mut Random) {
    let mut socket = TcpStream::connect(host).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(&Hello { kind: Kind::Session, session: 0, token: [0; TOKEN_BYTES] }.to_bytes()).unwrap();
    socket.read_exact(&mut [0; Welcome::BYTES]).expect("a client is greeted");
    let mut calls = opening(api);
    for last in 0..CALLS {
        let number = random.below(api.functions.len() as u64) as u16;
        let function = &api.functions[usize::from(number)];
        // A malformed call ends a session, so most clients send none before their last.
        let well_formed = !function.by_hand_on_server && matches!(function.way, Way::Sync | Way::Async | Way::Cached) && !function.blocks;
        if well_formed {
            calls.push((number, random.arguments(api, function)));
        } else if last == CALLS - 1 || random.below(40) == 0 {
            calls.push((number, random.nonsense()));
        }
    }
    let (mut message, mut answers) = (Vec::new(), 0);
    let end = calls.len() as u64;
    for (ticket, (function, arguments)) in (0..).zip(calls) {
        let by_hand = api.functions[usize::from(function)].by_hand_on_server;
        let replies = !by_hand && random.below(4) > 0;
        answers += u32::from(replies);
        let call = Call { length: arguments.len() as u32, function, api: api.number, replies, ticket };
        message.extend(call.to_bytes());
        message.extend(arguments);
    }
    // The answer to the last call comes when all others have been looked at.
    let echo = Call { length: 0, function: session_calls::ECHO, api: session_calls::API, replies: true, ticket: end };
    message.extend(echo.to_bytes());
    if socket.write_all(&message).is_err() {
        return;
    }
    for _ in 0..=answers {
        let mut header = [0; Reply::BYTES];
        // A session that has had enough ends without an answer.
        let Ok(()) = socket.read_exact(&mut header) else { return };
        let reply = Reply::from_bytes(&header).expect("the server's answers are well-formed");
        if socket.read_exact(&mut vec![0; reply.length as usize]).is_err() {
            return;
        }
    }
}

#[test]
fn no_message_crashes_the_process_of_its_client() {
    const TEST: &str = "no_message_crashes_the_process_of_its_client";
    if role().is_some() {
        let driver = Driver::open();
        driver.begin().unwrap();
        let x = driver.allocate(4 * 1000);
        for round in 0..300 {
            driver.write(x, &vec![round as f32; 1000]);
            assert!(driver.read(x, 1000).iter().all(|value| *value == round as f32));
        }
        return;
    }
    let server = Server::start(&["--memory-mib", "64"]);
    let host = server.tcp.strip_prefix("tcp:").unwrap();
    let mut honest = program(TEST, "program", &server.tcp).spawn().unwrap();
    let mut random = Random(20_261_127);
    let api = gpuremote_describe::read("../describe/apis", "cuda").unwrap();
    for _ in 0..CLIENTS {
        attack(host, &api, &mut random);
    }
    assert!(wait(&mut honest).success(), "another client noticed");
    server.wait_until_idle();
    let messages = std::fs::read_to_string(server.scratch.0.join("messages")).unwrap();
    let crashes: Vec<_> = messages.lines().filter(|line| line.contains("signal") || line.contains("panicked")).collect();
    assert!(crashes.is_empty(), "{crashes:#?}");
    assert!(messages.contains("malformed message"), "nothing was refused, so nothing was tried");
    let log = server.driver_log();
    let reached: BTreeSet<_> = log.lines().filter_map(|line| line.split_once('(')).map(|(name, _)| name).collect();
    assert!(reached.len() >= 60, "the driver was reached by {reached:?} only");
}
