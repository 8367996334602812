package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// notText refuses bytes that are no text: a compressed file, a program, another encoding.
func notText(data []byte) error {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			return malformed(lineAt(data, int64(i)), "is not text: byte %d (0x%02x) is not UTF-8; send YAML or JSON, uncompressed", i+1, data[i])
		case r < ' ' && r != '\t' && r != '\n' && r != '\r', r == 0x7f:
			return malformed(lineAt(data, int64(i)), "is not text: byte %d is the control character 0x%02x; remove it, or write it as an escape in a quoted text", i+1, r)
		}
		i += size
	}
	return nil
}

// tabIndented returns the first line that is indented by a tab, or 0. YAML allows spaces only (YAML 1.2.2, section 6.1).
func tabIndented(data []byte) int {
	for i, line := range bytes.Split(data, []byte("\n")) {
		indent := line[:len(line)-len(bytes.TrimLeft(line, " \t"))]
		if bytes.ContainsRune(indent, '\t') && len(bytes.TrimSpace(line)) > 0 {
			return i + 1
		}
	}
	return 0
}

// yamlProblems translates what the YAML parser says into what to do, by a part of its message.
var yamlProblems = []struct{ says, problem string }{
	{"',' or ']' must be specified", "a list in brackets needs a ',' between its items and a ']' at its end"},
	{"sequence end token ']'", "a list opens with '[' but is not closed; add a ']'"},
	{"',' or '}' must be specified", "a mapping in braces needs a ',' between its fields and a '}' at its end"},
	{"flow mapping end token '}'", "a mapping opens with '{' but is not closed; add a '}'"},
	{"'[' character corresponding", "a ']' has no matching '['; remove it"},
	{"'{' character corresponding", "a '}' has no matching '{'; remove it"},
	{"end character of", "a quote is opened but not closed; add the closing quote"},
	{"quote", "a quote is opened but not closed; add the closing quote"},
	{"unknown escape character", "a text in double quotes holds an unknown escape; write \\\\ for a backslash, or use single quotes"},
	{"reserved character", "a value begins with a character that YAML reserves; put the value in quotes"},
	{"cannot start any token", "a value begins with a character that is not allowed there; put the value in quotes"},
	{"mapping value is not allowed", "the indentation is wrong, or a value holds ': '; align the fields, or put the value in quotes"},
	{"already defined", "a field is given twice; keep one"},
	{"anchor", "anchors are not supported; write the value itself"},
	{"alias", "aliases are not supported; write the value itself"},
	{"tag", "tags are not supported; write the value itself"},
	{"directive", "directives are not supported; remove the line that begins with '%'"},
}

// yamlProblem says what is wrong with a text that the YAML parser refused.
func yamlProblem(message string) string {
	for _, p := range yamlProblems {
		if strings.Contains(message, p.says) {
			return "is not YAML: " + p.problem
		}
	}
	return "is not YAML: write fields as NAME: VALUE, one per line, with equal indentation within a mapping; correct this line or the line before"
}

// jsonProblem says what is wrong with a text that is not JSON.
func jsonProblem(data []byte, syntax *json.SyntaxError) error {
	// Offset counts the bytes read, the offending one included.
	at := max(syntax.Offset-1, 0)
	line := lineAt(data, at)
	switch {
	case strings.Contains(syntax.Error(), "unexpected end"):
		return malformed(line, "is not JSON: it ends too early; close every quote, bracket and brace")
	case strings.Contains(syntax.Error(), "after top-level value"):
		return malformed(line, "goes on after the end of the object; write one object")
	case strings.Contains(syntax.Error(), "in string literal"), strings.Contains(syntax.Error(), "in string escape"):
		return malformed(line, "is not JSON: a text holds a line break, a tab or an unknown escape; write \\n, \\t or \\\\")
	}
	r, _ := utf8.DecodeRune(data[at:])
	return malformed(line, "is not JSON: %s is not expected here; check the commas, quotes and brackets up to this place", fmt.Sprintf("%q", string(r)))
}
