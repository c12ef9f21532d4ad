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
