package api

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestTheTextOfAJobCountsAsItIsStored(t *testing.T) {
	for _, text := range []string{"", "plain", "<&>", "\x00\x01\x1f", "quote \" and \\", "\xff\xfe", "ä€😀", "\u2028\u2029", "\x7f", "\b\f\n\r\t"} {
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(text); err != nil {
			t.Fatal(err)
		}
		stored := b.Len() - len("\"\"\n")
		if got := (&JobRequest{Command: []string{text}}).TextBytes(); got != stored {
			t.Errorf("%q: counted as %d bytes, stored in %d: %s", text, got, stored, b.String())
		}
	}
}
