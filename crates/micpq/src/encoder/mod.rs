//! stub
/// How token states become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The state of `[CLS]`.
    Cls,
    /// The mean over all tokens, `[CLS]` and `[SEP]` among them.
    Mean,
}
impl std::fmt::Display for Pooling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Pooling::Cls => "cls",
            Pooling::Mean => "mean",
        })
    }
}
