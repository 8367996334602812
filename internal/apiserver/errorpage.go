package apiserver

import (
	"fmt"
	"strings"
)

// Codes lists every error code the API answers with.
func Codes() []Code { return codeTable() }

// ErrorPage is docs/api-errors.md.
func ErrorPage() string {
	var b strings.Builder
	b.WriteString(`# API errors

Generated from internal/apiserver/codes.go by ` + "`go test ./internal/apiserver -run ErrorPage -update`" + `; do not edit.

Every error is answered as problem details ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457), ` + "`application/problem+json`" + `):

` + "```json" + `
{
  "type": "urn:nearmetal:problem:invalid_cluster",
  "title": "The requested cluster is invalid",
  "status": 422,
  "code": "invalid_cluster",
  "detail": "line 3: groups[0].sise: is not a field; did you mean \"size\"?",
  "errors": [{"location": "groups[0].sise", "line": 3, "message": "is not a field; did you mean \"size\"?"}]
}
` + "```" + `

` + "`code`" + ` is stable and for programs. ` + "`detail`" + ` is for people: what was wrong, where, and what to do. ` + "`errors`" + ` lists every single problem of an
invalid request with its location, and its line in the body.

| code | status | meaning | what to do |
|---|---|---|---|
`)
	for _, c := range codeTable() {
		fmt.Fprintf(&b, "| `%s` | %d | %s: %s | %s |\n", c.Code, c.Status, c.Title, lowerFirst(c.Meaning), c.Remedy)
	}
	return b.String()
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }
