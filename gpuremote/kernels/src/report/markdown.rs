//! Tables and lists as Markdown text.

use std::collections::BTreeMap;
use std::fmt::Write;

/// A cell without a value.
pub const NONE: &str = "–";

/// A table under construction.
#[derive(Debug)]
pub struct Table {
    text: String,
    columns: usize,
}

impl Table {
    /// Begins a table; columns whose heading begins with `>` are aligned right.
    pub fn new(headings: &[&str]) -> Self {
        let mut table = Self { text: String::new(), columns: headings.len() };
        table.row(headings.iter().map(|heading| heading.trim_start_matches('>').to_string()));
        table.text.push('|');
        for heading in headings {
            table.text.push_str(if heading.starts_with('>') { "---:|" } else { "---|" });
        }
        table.text.push('\n');
        table
    }

    /// Adds a row, which must have a cell for each heading.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut count = 0;
        for cell in cells {
            let _ = write!(self.text, "| {} ", cell.replace('|', "\\|"));
            count += 1;
        }
        assert_eq!(count, self.columns, "a row has a cell for each heading");
        self.text.push_str("|\n");
    }

    /// Returns the table's text.
    pub fn finish(self) -> String {
        self.text
    }
}

/// Returns `names` as code, separated by commas.
pub fn code_list(names: &[String]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the line that names a table's files; names that differ in their last part only are joined with braces.
pub fn sources(names: &[String]) -> String {
    let mut stems: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for name in names {
        let name = name.trim_end_matches(".json");
        let (stem, last) = name.rsplit_once('-').unwrap_or(("", name));
        stems.entry(stem).or_default().push(last);
    }
    let joined: Vec<String> = stems
        .into_iter()
        .map(|(stem, last)| match last.as_slice() {
            [only] => format!("{stem}-{only}.json"),
            several => format!("{stem}-{{{}}}.json", several.join(",")),
        })
        .collect();
    format!("Source: {}.\n", code_list(&joined))
}

/// Returns the line that names missing files, or nothing.
pub fn missing(names: &[String]) -> String {
    match names {
        [] => String::new(),
        _ => format!("Missing: {}.\n", code_list(names)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_in_a_cell_does_not_end_it() {
        let mut table = Table::new(&["name", ">us"]);
        table.row(["a|b".to_string(), "1".to_string()]);
        assert_eq!(table.finish(), "| name | us |\n|---|---:|\n| a\\|b | 1 |\n");
    }

    #[test]
    fn sources_join_names_that_differ_in_the_way() {
        let names = ["micro-local.json", "micro-tcp.json", "published-nw-tcp.json"].map(str::to_string);
        assert_eq!(sources(&names), "Source: `micro-{local,tcp}.json`, `published-nw-tcp.json`.\n");
    }
}
