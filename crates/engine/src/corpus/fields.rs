//! Turns the fields of a row into a document: assigns each field its role and refuses bad values.

use serde_json::{Map, Value as Json};

use super::Fault;
use super::config::{CorpusConfig, Format};
use super::document::{DocId, Document, Value};

const ID_FIELDS: [&str; 2] = ["id", "_id"];
const TEXT_FIELDS: [&str; 3] = ["text", "body", "content"];
const LABEL_FIELDS: [&str; 2] = ["label", "labels"];

/// A longer id is a wrong path or a text. An inverted index takes no term above 65,530 bytes anyway.
const MAX_ID_BYTES: usize = 4096;

/// A row of any format.
pub(super) struct Row {
    /// In the row's order. Only `text` if the format has no fields.
    fields: Map<String, Json>,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Typed,
    /// Every field is a string.
    Cells,
    /// The format has no fields, so field names in the configuration do not apply.
    Bare,
}

impl Row {
    /// A row of a format with typed fields.
    pub(super) fn typed(fields: Map<String, Json>) -> Row {
        Row { fields, kind: Kind::Typed }
    }

    /// A row of a format whose fields are all text.
    pub(super) fn cells(fields: Map<String, Json>) -> Row {
        Row { fields, kind: Kind::Cells }
    }

    /// A row of a format that holds only texts.
    pub(super) fn text(text: String) -> Row {
        let mut fields = Map::new();
        fields.insert("text".into(), Json::String(text));
        Row { fields, kind: Kind::Bare }
    }

    /// A file with an id, perhaps a label, and what was read from it: `text` and attributes.
    pub(super) fn file(id: String, fields: Map<String, Json>, label: Option<&str>) -> Row {
        let mut row = Row { fields, kind: Kind::Bare };
        row.fields.insert("id".into(), Json::String(id));
        if let Some(label) = label {
            row.fields.insert("label".into(), Json::String(label.to_owned()));
        }
        row
    }
}

/// Parses one JSON object, or one JSON string, which becomes a text.
pub(super) fn json_row(text: &str) -> Result<Row, String> {
    match serde_json::from_str(text) {
        Ok(value) => value_row(value),
        Err(error) => {
            let message = error.to_string();
            let what = message.split(" at line ").next().unwrap_or(&message);
            Err(format!("not a whole JSON object: {what} at column {}; mend or remove the row", error.column()))
        }
    }
}

/// The row of a JSON object, or of a JSON string, which becomes a text.
pub(super) fn value_row(value: Json) -> Result<Row, String> {
    match value {
        Json::Object(fields) => Ok(Row::typed(fields)),
        Json::String(text) => Ok(Row::text(text)),
        other => Err(format!("a JSON object is expected, found {}", kind(&other))),
    }
}

pub(super) fn utf8(bytes: &[u8]) -> Result<&str, Fault> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        Fault::Row(format!(
            "not UTF-8: byte 0x{:02x} at byte {} of the row; convert the file, for instance with iconv -f LATIN1 -t UTF-8",
            bytes[at],
            at + 1
        ))
    })
}

/// The kind of a JSON value with its article, for messages.
fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(number) if number.is_f64() => "a number with a fraction",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

/// The role of each field.
pub(super) struct Fields {
    id: Option<String>,
    text: Vec<String>,
    label: Option<String>,
    label_separator: Option<String>,
    ignore: Vec<String>,
    infer_types: bool,
    allow_empty_text: bool,
}

impl Fields {
    /// Roles as configured, with the defaults of the format.
    pub(super) fn new(config: &CorpusConfig, format: Format) -> Fields {
        let mut text = config.text_fields.clone();
        if text.is_empty() && format == Format::Beir {
            // BEIR itself gives encoders the title and the text.
            text = vec!["title".into(), "text".into()];
        }
        Fields {
            id: config.id_field.clone(),
            text,
            label: config.label_field.clone(),
            label_separator: config.label_separator.clone(),
            ignore: config.ignore_fields.clone(),
            infer_types: config.infer_types,
            allow_empty_text: config.allow_empty_text,
        }
    }

    /// Whether a row of cells is a header: one of its cells is a known field name.
    pub(super) fn is_header<'a>(&self, mut cells: impl Iterator<Item = &'a str>) -> bool {
        cells.any(|cell| {
            let known = ID_FIELDS.iter().chain(&TEXT_FIELDS).chain(&LABEL_FIELDS).chain(&["title"]);
            let chosen = self.text.iter().chain(&self.id).chain(&self.label);
            known.copied().chain(chosen.map(String::as_str)).any(|name| name == cell.trim())
        })
    }

    pub(super) fn ignores(&self, name: &str) -> bool {
        self.ignore.iter().any(|ignored| ignored == name)
    }

    /// Whether rows with these columns can become documents. A columnar file is refused as a whole.
    pub(super) fn check_columns(&self, columns: &[String]) -> Result<(), String> {
        // A dotted name is a field inside a column of objects.
        let holds = |name: &str| columns.iter().any(|c| c == name || name.starts_with(&format!("{c}.")));
        let found = match self.text.as_slice() {
            [] => TEXT_FIELDS.iter().any(|name| holds(name)),
            chosen => chosen.iter().any(|name| holds(name)),
        };
        if !found {
            return Err(self.no_text(columns.iter().map(String::as_str)));
        }
        for (what, name) in self.id.iter().map(|n| ("id", n)).chain(self.label.iter().map(|n| ("label", n))) {
            if !holds(name) {
                return Err(format!("there is no {what} column \"{name}\"; the columns are {}", listed(columns)));
            }
        }
        Ok(())
    }

    /// The document of a row. `number` becomes its id if it has none. The error is a message.
    pub(super) fn document(&self, row: Row, number: u64) -> Result<Document, String> {
        let Row { fields, kind } = row;
        let fields = flattened(fields)?;
        let bare = kind == Kind::Bare;
        let pick = |names: &[&'static str], chosen: &Option<String>| match chosen {
            Some(name) if !bare => Some(name.clone()),
            _ => names.iter().find(|name| fields.get(**name).is_some_and(|v| !v.is_null())).map(|n| n.to_string()),
        };
        let id_field = pick(&ID_FIELDS, &self.id);
        let label_field = pick(&LABEL_FIELDS, &self.label);
        let text_fields = match self.text.as_slice() {
            [] => {
                TEXT_FIELDS.iter().find(|name| fields.contains_key(**name)).map(|n| n.to_string()).into_iter().collect()
            }
            _ if bare => vec!["text".to_owned()],
            chosen => chosen.to_vec(),
        };
        if !text_fields.iter().any(|name| fields.contains_key(name)) {
            return Err(self.no_text(fields.keys().map(String::as_str)));
        }
        if let (Some(name), false) = (&self.id, bare)
            && fields.get(name).is_none_or(Json::is_null)
        {
            return Err(format!("there is no id field \"{name}\"; the fields are {}", listed(fields.keys())));
        }

        let mut document = Document { id: DocId::Int(number), text: String::new(), labels: vec![], attributes: vec![] };
        let mut texts: Vec<Option<String>> = vec![None; text_fields.len()];
        for (name, value) in fields {
            if let Some(place) = text_fields.iter().position(|field| *field == name) {
                texts[place] = text(&name, value)?;
            } else if self.ignores(&name) || value.is_null() {
                continue;
            } else if id_field.as_ref() == Some(&name) {
                // An empty cell is an absent value: CSV cannot express it otherwise.
                if let Some(id) = id(&name, value, kind, self.id.is_some())? {
                    document.id = id;
                }
            } else if label_field.as_ref() == Some(&name) {
                document.labels = self.labels(&name, value)?;
            } else if let Some(value) = self.attribute(&name, value, kind)? {
                document.attributes.push((name, value));
            }
        }
        let mut texts = texts.into_iter().flatten().filter(|text| !text.trim().is_empty());
        document.text = texts.next().unwrap_or_default();
        for text in texts {
            document.text.push(' ');
            document.text.push_str(&text);
        }
        if document.text.is_empty() && !self.allow_empty_text {
            return Err(format!(
                "the text ({}) is empty; fill it, remove the row, or allow empty texts",
                listed(&text_fields)
            ));
        }
        Ok(document)
    }

    fn no_text<'a>(&self, found: impl Iterator<Item = &'a str>) -> String {
        let (wanted, remedy) = match self.text.as_slice() {
            [] => (listed(TEXT_FIELDS), "name those that hold the text with text_fields"),
            chosen => (listed(chosen), "mend the row, or name others in text_fields"),
        };
        let found = match listed(found) {
            none if none.is_empty() => "there are no fields".to_owned(),
            some => format!("the fields are {some}"),
        };
        format!("there is no text: one of {wanted} is expected, {found}; {remedy}")
    }

    fn labels(&self, name: &str, value: Json) -> Result<Vec<String>, String> {
        let values = match value {
            Json::Array(values) => values,
            single => vec![single],
        };
        let mut labels = Vec::with_capacity(values.len());
        for value in values {
            match value {
                Json::Null => {}
                Json::String(label) => match &self.label_separator {
                    Some(separator) => labels.extend(label.split(separator.as_str()).map(|l| l.trim().to_owned())),
                    None => labels.push(label),
                },
                Json::Number(number) if !number.is_f64() => labels.push(number.to_string()),
                Json::Bool(truth) => labels.push(truth.to_string()),
                other => {
                    return Err(format!(
                        "label field \"{name}\" holds {}; a string, a whole number or a list of these is expected",
                        kind(&other)
                    ));
                }
            }
        }
        labels.retain(|label| !label.is_empty());
        Ok(labels)
    }

    fn attribute(&self, name: &str, value: Json, source: Kind) -> Result<Option<Value>, String> {
        Ok(Some(match value {
            Json::Null | Json::Object(_) => return Ok(None),
            Json::String(cell) if source == Kind::Cells && cell.is_empty() => return Ok(None),
            Json::String(cell) if source == Kind::Cells && self.infer_types => Value::infer(cell),
            Json::String(text) => Value::Text(text),
            Json::Bool(truth) => Value::Bool(truth),
            Json::Number(number) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => Value::Int(whole),
                (None, Some(float)) if number.is_f64() => Value::Float(float),
                _ => {
                    return Err(format!(
                        "attribute \"{name}\" is {number}, above {}; write it as a string or ignore the field",
                        i64::MAX
                    ));
                }
            },
            Json::Array(values) => {
                let texts: Result<Vec<Option<String>>, String> = values
                    .into_iter()
                    .map(|value| match value {
                        Json::Null => Ok(None),
                        Json::String(text) => Ok(Some(text)),
                        Json::Bool(truth) => Ok(Some(truth.to_string())),
                        Json::Number(number) if !number.is_f64() => Ok(Some(number.to_string())),
                        other => Err(format!(
                            "attribute \"{name}\" is a list that holds {}; lists of strings, whole numbers and booleans \
                             are kept, so ignore the field if it is not needed",
                            kind(&other)
                        )),
                    })
                    .collect();
                Value::Texts(texts?.into_iter().flatten().collect())
            }
        }))
    }
}

fn text(name: &str, value: Json) -> Result<Option<String>, String> {
    match value {
        Json::Null => Ok(None),
        Json::String(text) => Ok(Some(text)),
        other => Err(format!("text field \"{name}\" is {}, a string is expected", kind(&other))),
    }
}

fn id(field: &str, value: Json, source: Kind, required: bool) -> Result<Option<DocId>, String> {
    let id = match value {
        Json::String(cell) if source == Kind::Cells && cell.is_empty() && !required => return Ok(None),
        Json::String(cell) if source == Kind::Cells => cell.parse().unwrap_or(DocId::Str(cell)),
        Json::String(id) => DocId::Str(id),
        Json::Number(number) if !number.is_f64() => match number.as_u64() {
            Some(id) => DocId::Int(id),
            // Signed hashes are used as ids; a string keeps the sign.
            None => DocId::Str(number.to_string()),
        },
        other => {
            return Err(format!("id field \"{field}\" is {}; a string or a whole number is expected", kind(&other)));
        }
    };
    match &id {
        DocId::Str(name) if name.is_empty() => {
            Err(format!("id field \"{field}\" is empty; give the row an id or leave it out"))
        }
        DocId::Str(name) if name.len() > MAX_ID_BYTES => Err(format!(
            "id field \"{field}\" has {} bytes, the limit is {MAX_ID_BYTES}; is it the right field?",
            name.len()
        )),
        _ => Ok(Some(id)),
    }
}

/// Names for a message, in quotes. A long list is cut: a row may have a thousand fields.
fn listed(names: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    const SHOWN: usize = 20;
    let mut names = names.into_iter();
    let shown: Vec<String> = names.by_ref().take(SHOWN).map(|name| format!("\"{}\"", name.as_ref())).collect();
    let list = shown.join(", ");
    match names.count() {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

/// Flattens objects to dotted names: `{"a": {"b": 1}}` becomes `a.b`.
fn flattened(fields: Map<String, Json>) -> Result<Map<String, Json>, String> {
    if !fields.values().any(Json::is_object) {
        return Ok(fields);
    }
    fn pour(prefix: Option<&str>, from: Map<String, Json>, into: &mut Map<String, Json>) -> Result<(), String> {
        for (name, value) in from {
            let name = prefix.map_or_else(|| name.clone(), |prefix| format!("{prefix}.{name}"));
            match value {
                Json::Object(inner) => pour(Some(&name), inner, into)?,
                value => {
                    if into.insert(name.clone(), value).is_some() {
                        return Err(format!("\"{name}\" is both a field and a member of an object; rename one"));
                    }
                }
            }
        }
        Ok(())
    }
    let mut flat = Map::new();
    pour(None, fields, &mut flat)?;
    Ok(flat)
}
