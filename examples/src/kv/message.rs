//! The messages between the two workers, sent as ferry notifications.

use std::error::Error;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The ids of the sender's blocks for the sequence.
    Table(Vec<i32>),
    /// One layer of this pass is in your memory. Attached to the layer's WRITE.
    Layer { pass: u8, layer: u8 },
    /// The sender's cache has this pass's data: READ it.
    Filled { pass: u8 },
    /// Every word of this pass is correct.
    Checked { pass: u8 },
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Message::Table(ids) => {
                [0].into_iter().chain(ids.iter().flat_map(|id| id.to_le_bytes())).collect()
            }
            Message::Layer { pass, layer } => vec![1, *pass, *layer],
            Message::Filled { pass } => vec![2, *pass],
            Message::Checked { pass } => vec![3, *pass],
        }
    }

    pub fn decode(bytes: &[u8]) -> Result<Message, Box<dyn Error>> {
        match bytes {
            [0, ids @ ..] if ids.len() % 4 == 0 => {
                let ids = ids.chunks_exact(4).map(|id| i32::from_le_bytes([id[0], id[1], id[2], id[3]]));
                Ok(Message::Table(ids.collect()))
            }
            [1, pass, layer] => Ok(Message::Layer { pass: *pass, layer: *layer }),
            [2, pass] => Ok(Message::Filled { pass: *pass }),
            [3, pass] => Ok(Message::Checked { pass: *pass }),
            other => Err(format!("a notification that no worker sends: {other:?}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip() {
        for message in [
            Message::Table(vec![7, 0, i32::MAX]),
            Message::Layer { pass: 1, layer: 31 },
            Message::Filled { pass: 2 },
            Message::Checked { pass: 3 },
        ] {
            assert_eq!(Message::decode(&message.encode()).unwrap(), message);
        }
        assert!(Message::decode(&[0, 1, 2]).is_err() && Message::decode(&[]).is_err());
    }
}
