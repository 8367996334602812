package api

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxMessageBytes bounds a message, reason or problem that is stored. Some of them repeat what a tenant, a node or a BMC worded.
const MaxMessageBytes = 1000

// ShortMessage returns a message of at most MaxMessageBytes.
func ShortMessage(message string) string { return Shorten(message, MaxMessageBytes) }

// Shorten returns text of at most so many bytes. Of a longer text it keeps the beginning, which says what failed, and the end, which
// says why, with a note in between. What is no UTF-8 is replaced.
func Shorten(text string, most int) string {
	if len(text) <= most {
		return strings.ToValidUTF8(text, "?")
	}
	note := fmt.Sprintf(" ... [%d bytes omitted] ... ", len(text)-most)
	keep := max(0, most-len(note))
	head, tail := text[:keep/2], text[len(text)-(keep-keep/2):]
	for len(tail) > 0 && !utf8.RuneStart(tail[0]) {
		tail = tail[1:]
	}
	return strings.ToValidUTF8(head, "") + note + strings.ToValidUTF8(tail, "?")
}
