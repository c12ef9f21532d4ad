//! E-mail: messages of an mbox file or of single files, as documents.

use mail_parser::mailbox::mbox::MessageIterator;
use mail_parser::{Message, MessageParser};
use serde_json::{Map, Value as Json};

/// The fields of one message: text with the subject first, and subject, sender, date and message id as attributes. The
/// error is a message.
pub(super) fn fields(bytes: &[u8]) -> Result<Map<String, Json>, String> {
    let unread = || "is no e-mail message: it has no header; check the file".to_owned();
    let message = MessageParser::default().parse(bytes).ok_or_else(unread)?;
    if message.from().is_none() && message.subject().is_none() && message.date().is_none() {
        return Err(unread());
    }
    let subject = message.subject().map(str::trim).filter(|subject| !subject.is_empty());
    let body = (0..message.text_body.len()).filter_map(|part| message.body_text(part));
    let body = body.map(|part| part.trim().to_owned()).collect::<Vec<_>>().join("\n\n");
    let heading = subject.map_or_else(String::new, |subject| format!("# {subject}\n\n"));
    let mut fields = Map::new();
    let mut put = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            fields.insert(name.into(), Json::String(value));
        }
    };
    put("text", Some(heading + &body));
    put("title", subject.map(str::to_owned));
    put("from", sender(&message));
    put("date", message.date().map(|date| date.to_rfc3339()));
    put("message_id", message.message_id().map(str::to_owned));
    Ok(fields)
}

fn sender(message: &Message) -> Option<String> {
    let address = message.from()?.first()?;
    Some(match (address.name(), address.address()) {
        (Some(name), Some(at)) => format!("{name} <{at}>"),
        (name, at) => name.or(at)?.to_owned(),
    })
}

/// The messages of an mbox file, each as its bytes.
pub(super) fn messages(reader: impl std::io::BufRead) -> impl Iterator<Item = std::io::Result<Vec<u8>>> {
    MessageIterator::new(reader).map(|message| message.map(|message| message.unwrap_contents()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_its_subject_sender_date_and_decoded_text() {
        let mail = b"From: =?ISO-8859-1?Q?J=FCrgen?= <j@example.org>\r\nSubject: =?UTF-8?B?w5ZscHJlaXNl?=\r\n\
            Date: Thu, 19 Mar 1987 10:00:00 +0100\r\nMessage-ID: <1@example.org>\r\n\
            Content-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\nSie steigen f=FCr alle.\r\n";
        let fields = fields(mail).unwrap();
        assert_eq!(fields["text"], "# \u{d6}lpreise\n\nSie steigen f\u{fc}r alle.");
        assert_eq!(fields["from"], "J\u{fc}rgen <j@example.org>");
        assert_eq!(fields["date"], "1987-03-19T10:00:00+01:00");
        assert_eq!(fields["message_id"], "1@example.org");
        assert!(super::fields(b"\x89PNG\r\n\x1a\n").is_err());
    }

    #[test]
    fn an_mbox_is_split_into_its_messages() {
        let mbox = "From a@b Thu Mar 19 10:00:00 1987\nSubject: one\n\n>From the start\n\nFrom c@d Thu Mar 19 11:00:00 1987\nSubject: two\n\nbody\n";
        let all: Vec<Vec<u8>> = messages(mbox.as_bytes()).collect::<Result<_, _>>().unwrap();
        let texts: Vec<String> = all.iter().map(|m| fields(m).unwrap()["text"].as_str().unwrap().to_owned()).collect();
        assert_eq!(texts, ["# one\n\nFrom the start", "# two\n\nbody"]);
    }
}
