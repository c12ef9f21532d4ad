//! Cleaning of raw text before tokenisation.
/// placeholder
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Clean {
    /// The text as it is.
    #[default]
    None,
    /// The authors' cleaning.
    Faithful,
}
impl std::fmt::Display for Clean {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Clean::None => "none",
            Clean::Faithful => "faithful",
        })
    }
}
impl Clean {
    /// placeholder until the corpus branch is merged
    pub fn apply<'a>(self, text: &'a str, _max_words: Option<usize>) -> std::borrow::Cow<'a, str> {
        std::borrow::Cow::Borrowed(text)
    }
}
