//! A strict reader of simple XML: elements, attributes in double quotes, text. Panics at anything that is not well-formed.

#[derive(Debug, Default)]
pub struct Element {
    pub name: String,
    attributes: Vec<(String, String)>,
    pub text: String,
    /// The text of its own title.
    pub title: String,
}

impl Element {
    pub fn value(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }
}

/// Returns all elements in the order of their beginnings.
pub fn parse(text: &str) -> Vec<Element> {
    let (mut all, mut open): (Vec<Element>, Vec<usize>) = (Vec::new(), Vec::new());
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        let (before, from) = rest.split_at(at);
        assert!(!before.contains(['>', '&']), "{before:?}");
        match open.last() {
            Some(last) => all[*last].text += before.trim(),
            None => assert!(before.trim().is_empty(), "text outside of the root: {before:?}"),
        }
        let (tag, behind) = from[1..].split_once('>').expect("a tag ends");
        assert!(!tag.contains('<'), "{tag:?}");
        rest = behind;
        if let Some(name) = tag.strip_prefix('/') {
            let last = open.pop().expect("an element is open");
            assert_eq!(all[last].name, name, "elements nest");
            if let (Some(parent), "title") = (open.last(), name) {
                all[*parent].title = all[last].text.clone();
            }
            continue;
        }
        assert!(!open.is_empty() || all.is_empty(), "one root");
        let (inner, is_empty) = tag.strip_suffix('/').map_or((tag, false), |inner| (inner, true));
        all.push(element(inner));
        if !is_empty {
            open.push(all.len() - 1);
        }
    }
    assert!(open.is_empty() && rest.trim().is_empty(), "{open:?} are open at the end: {rest:?}");
    assert!(!all.is_empty());
    all
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
}

fn element(tag: &str) -> Element {
    let (name, mut rest) = tag.split_once(' ').unwrap_or((tag, ""));
    assert!(is_name(name), "{tag:?}");
    let mut found = Element { name: name.into(), ..Element::default() };
    while !rest.is_empty() {
        let (attribute, behind) = rest.split_once("=\"").expect("an attribute has a value");
        let (value, behind) = behind.split_once('"').expect("a value ends");
        assert!(is_name(attribute) && !value.contains('&'), "{tag:?}");
        assert!(found.value(attribute).is_none(), "an attribute is there once: {tag:?}");
        found.attributes.push((attribute.into(), value.into()));
        rest = behind.strip_prefix(' ').unwrap_or(behind);
        assert!(rest.is_empty() || behind.starts_with(' '), "{tag:?}");
    }
    found
}
