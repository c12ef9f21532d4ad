//! Readable text of an HTML page.

use scraper::{Html, Node};

/// A page as text: headings as Markdown headings, paragraphs with a blank line between them.
pub(super) struct Page {
    pub(super) title: Option<String>,
    pub(super) text: String,
}

/// Elements that hold no text of the page itself.
const SKIPPED: [&str; 16] = [
    "head", "script", "style", "noscript", "template", "svg", "math", "nav", "aside", "footer", "form", "button",
    "select", "iframe", "object", "dialog",
];

/// Elements that begin and end a paragraph.
const BLOCKS: [&str; 29] = [
    "p",
    "div",
    "section",
    "article",
    "main",
    "header",
    "body",
    "ul",
    "ol",
    "li",
    "dl",
    "dt",
    "dd",
    "table",
    "tr",
    "blockquote",
    "pre",
    "figure",
    "figcaption",
    "hr",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "address",
    "details",
    "summary",
];

pub(super) fn read(html: &str) -> Page {
    let document = Html::parse_document(html);
    let title = first(&document, "title").map(|node| words(node.descendants().filter_map(text_of)));
    // A page that marks its content has menus around it.
    let content = ["main", "article", "body"].iter().find_map(|name| first(&document, name));
    let mut writer = Writer::default();
    for edge in content.unwrap_or(document.tree.root()).traverse() {
        match edge {
            ego_tree::iter::Edge::Open(node) => writer.open(node.value()),
            ego_tree::iter::Edge::Close(node) => writer.close(node.value()),
        }
    }
    let text = writer.finish();
    Page { title: title.filter(|title| !title.is_empty()), text }
}

type NodeRef<'a> = ego_tree::NodeRef<'a, Node>;

fn first<'a>(document: &'a Html, name: &str) -> Option<NodeRef<'a>> {
    document.tree.root().descendants().find(|node| node.value().as_element().is_some_and(|e| e.name() == name))
}

fn text_of(node: NodeRef<'_>) -> Option<&str> {
    node.value().as_text().map(|text| &**text)
}

/// Words with one blank between them.
fn words<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    texts.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

#[derive(Default)]
struct Writer {
    text: String,
    /// Elements that are open and skipped.
    skipped: usize,
    /// Open `pre` elements, which keep their blanks.
    verbatim: usize,
    /// Whether a blank stands before the next word.
    blank: bool,
}

impl Writer {
    fn open(&mut self, node: &Node) {
        match node {
            Node::Element(element) => self.open_element(element.name()),
            Node::Text(text) if self.skipped == 0 && self.verbatim > 0 => self.text.push_str(text),
            Node::Text(text) if self.skipped == 0 => self.words(text),
            _ => {}
        }
    }

    fn open_element(&mut self, name: &str) {
        if SKIPPED.contains(&name) {
            self.skipped += 1;
        }
        if self.skipped > 0 {
            return;
        }
        match name {
            "br" => self.line(),
            "td" | "th" => self.blank = true,
            "li" => {
                self.line();
                self.text.push_str("- ");
            }
            "tr" | "dt" | "dd" => self.line(),
            _ if BLOCKS.contains(&name) => self.paragraph(),
            _ => {}
        }
        self.verbatim += usize::from(name == "pre");
        if let [b'h', level @ b'1'..=b'6'] = name.as_bytes() {
            self.text.push_str(&"#".repeat((level - b'0') as usize));
            self.blank = true;
        }
    }

    fn close(&mut self, node: &Node) {
        let Node::Element(element) = node else { return };
        let name = element.name();
        if self.skipped == 0 {
            self.verbatim -= usize::from(name == "pre");
            match name {
                "li" | "tr" | "dt" | "dd" => self.line(),
                _ if BLOCKS.contains(&name) => self.paragraph(),
                _ => {}
            }
        }
        self.skipped -= usize::from(SKIPPED.contains(&name));
    }

    fn words(&mut self, text: &str) {
        for (i, word) in text.split_whitespace().enumerate() {
            let blank = i > 0 || self.blank || text.starts_with(char::is_whitespace);
            if blank && !self.text.is_empty() && !self.text.ends_with([' ', '\n']) {
                self.text.push(' ');
            }
            self.text.push_str(word);
        }
        self.blank = text.ends_with(char::is_whitespace) || self.blank && text.trim().is_empty();
    }

    fn line(&mut self) {
        self.blank = false;
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }

    fn paragraph(&mut self) {
        self.line();
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.text.push('\n');
        }
    }

    fn finish(self) -> String {
        self.text.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_its_readable_text_with_headings() {
        let page = read(
            "<html><head><title> Oil &amp;\n gas </title><style>p{}</style></head><body><nav>Home | About</nav>\
             <main><h1>Oil <em>prices</em></h1><p>They rise\n  again.</p><script>track()</script>\
             <ul><li>crude</li><li>gas</li></ul><table><tr><td>1987</td><td>18.5</td></tr></table>\
             <h2>Outlook</h2><p>Un<b>known</b>.<br>Still.</p><pre>a  b\nc</pre></main><footer>(c)</footer></body></html>",
        );
        assert_eq!(page.title.as_deref(), Some("Oil & gas"));
        assert_eq!(
            page.text,
            "# Oil prices\n\nThey rise again.\n\n- crude\n- gas\n\n1987 18.5\n\n## Outlook\n\nUnknown.\nStill.\n\na  b\nc"
        );
    }

    #[test]
    fn broken_and_deep_pages_are_read() {
        assert_eq!(read("<p>open <b>and never closed").text, "open and never closed");
        assert_eq!(read("").text, "");
        let deep = "<div>".repeat(100_000) + "deep";
        assert_eq!(read(&deep).text, "deep");
    }
}
