package manifest

import (
	"errors"
	"strings"
	"testing"
)

func TestTextThatCannotBeReadIsRefusedInPlainWords(t *testing.T) {
	tests := []struct {
		name   string
		format Format
		text   string
		want   string
	}{
		{"a tab before a field", YAML, "name: c1\n\tsize: 2\n", "line 2: is indented by a tab; YAML allows spaces only"},
		{"a tab before a value", YAML, "name: \t@x\n", "line 1: is not YAML: "},
		{"a compressed file", YAML, "\x1f\x8b\x08\x00\x00", "line 1: is not text: byte 1 is the control character 0x1f"},
		{"a compressed file as JSON", JSON, "\x1f\x8b\x08\x00\x00", "line 1: is not text: byte 1"},
		{"another encoding", YAML, "name: c1\nlabels: {a: \xe9}\n", "line 2: is not text: byte 22 (0xe9) is not UTF-8"},
		{"a quote that is not closed", YAML, "name: \"c1\nsize: 2\n", "a quote is opened but not closed"},
		{"a value that begins with a reserved character", YAML, "name: @c1\n", "put the value in quotes"},
		{"two colons", YAML, "name: c1: c2\n", "line 1: is not YAML: the indentation is wrong, or a value holds ': '"},
		{"JSON that breaks off", JSON, "{\"name\": \"c1\"", "line 1: is not JSON: it ends too early"},
		{"a comma too many", JSON, "{\"name\": \"c1\",\n}", `line 2: is not JSON: "}" is not expected here`},
		{"a line break in a text", JSON, "{\"name\": \"c\n1\"}", "a text holds a line break"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := DecodeCluster([]byte(tt.text), tt.format)
			var invalid *Invalid
			if !errors.As(err, &invalid) || !invalid.Malformed || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q", err, tt.want)
			}
			for _, foreign := range []string{"json:", "yaml:", "strconv", "token", "character '", "literal", "sequence", "flow"} {
				if strings.Contains(err.Error(), foreign) {
					t.Errorf("%q says %q", err, foreign)
				}
			}
		})
	}
}

func TestNumbersThatAreNoneAreRefusedInPlainWords(t *testing.T) {
	for text, want := range map[string]string{
		"memory: 1.5":                          `memory: "1.5" is not a whole number of bytes; add a unit, such as 1.5GiB`,
		"memory: 99999999999999999999":         `memory: "99999999999999999999" is too large`,
		"memory: 99999999999TiB":               "is too large",
		"memory: -1":                           `memory: "-1" is not a size`,
		"time_limit: 99999999h":                `time_limit: "99999999h" is too long; the longest time span is 36500d`,
		"time_limit: 1h2d":                     `"1h2d" is not a time span`,
		"time_limit: 99999999999999999999d":    "is too long",
		"time_limit: 90":                       "the number needs a unit",
		"size: 1.5":                            "size: is 1.5, but has to be a whole number",
		"size: 99999999999999999999":           "size: is 99999999999999999999, but has to be a whole number that fits 64 bits",
		"memory: " + strings.Repeat("9", 2000): "9...\" is too large",
	} {
		_, _, err := DecodeCluster([]byte("name: c1\n"+text+"\n"), YAML)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "strconv") {
			t.Errorf("%.60s: %.300v, want %q", text, err, want)
		}
	}
}
