package api

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestALongMessageKeepsItsBeginningAndItsEnd(t *testing.T) {
	long := "begin " + strings.Repeat("ü", 40_000) + " end"
	got := ShortMessage(long)
	if len(got) > MaxMessageBytes || len(got) < MaxMessageBytes-10 {
		t.Errorf("it has %d bytes, want at most %d", len(got), MaxMessageBytes)
	}
	if !strings.HasPrefix(got, "begin ü") || !strings.HasSuffix(got, "ü end") || !strings.Contains(got, "[79010 bytes omitted]") {
		t.Errorf("got %q", got)
	}
	if !utf8.ValidString(got) {
		t.Error("it is no UTF-8")
	}
	for _, text := range []string{"", "short", strings.Repeat("x", MaxMessageBytes)} {
		if ShortMessage(text) != text {
			t.Errorf("%q was changed to %q", text, ShortMessage(text))
		}
	}
	if got := ShortMessage("a\xffb"); got != "a?b" {
		t.Errorf("got %q", got)
	}
}
