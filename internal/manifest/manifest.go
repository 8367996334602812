// Package manifest reads what a user asks for, a file or the body of a request, and normalizes it: strictly, with every
// problem found at once, each with its place and what to do.
//
// It is pure: bytes in, values out. It must never look at what exists (nodes, environments, other clusters); that is the
// API server's and placement's business. Start with DecodeCluster and Normalize.
package manifest

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// Format is a syntax a request can be written in.
type Format string

// The formats.
const (
	YAML Format = "yaml"
	JSON Format = "json"
)

// Detect guesses the format of text whose name says nothing: what begins like a JSON object is one.
func Detect(data []byte) Format {
	if bytes.HasPrefix(bytes.TrimLeft(data, " \t\r\n\ufeff"), []byte("{")) {
		return JSON
	}
	return YAML
}

// Invalid is the error of a request that can't be accepted: everything that is wrong with it.
type Invalid struct {
	// Malformed is true when the text could not even be read (syntax), false when what it asks for is wrong.
	Malformed bool
	Problems  []api.FieldProblem
}

// Error lists every problem, one a line when there are several.
func (e *Invalid) Error() string {
	if len(e.Problems) == 1 {
		return e.Problems[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d problems:", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.String())
	}
	return b.String()
}

// Source remembers where in the text each field was given, by its path ("groups[1].cores"). A nil Source knows nothing:
// a field then counts as given when it is not zero.
type Source struct {
	lines   map[string]int
	columns map[string]int
	// resets are the fields that a merge patch sets to null.
	resets map[string]bool
}

// Flags is a source for fields that were given by command-line flags: given ones, without lines.
func Flags(paths ...string) *Source {
	s := &Source{lines: map[string]int{}}
	for _, p := range paths {
		s.lines[p] = 0
	}
	return s
}

// Line of the field, 0 when unknown.
func (s *Source) Line(path string) int {
	if s == nil {
		return 0
	}
	return s.lines[path]
}

// Column of the field, 0 when unknown.
func (s *Source) Column(path string) int {
	if s == nil {
		return 0
	}
	return s.columns[path]
}

// Has tells whether the field was given, zero or not.
func (s *Source) Has(path string) bool {
	if s == nil {
		return false
	}
	_, ok := s.lines[path]
	return ok
}

// Resets reports whether a merge patch set the field to null. Has is then false.
func (s *Source) Resets(path string) bool { return s != nil && s.resets[path] }

// DecodeCluster reads a cluster request. The error is an *Invalid.
func DecodeCluster(data []byte, format Format) (api.ClusterRequest, *Source, error) {
	var req api.ClusterRequest
	src, err := decode(data, format, &req)
	return req, src, err
}

// DecodeJob reads a job request and checks it. The error is an *Invalid.
func DecodeJob(data []byte, format Format) (api.JobRequest, error) {
	var req api.JobRequest
	src, err := decode(data, format, &req)
	if err != nil {
		return req, err
	}
	return req, CheckJob(req, src)
}

// Decode reads any other request, without checking what it asks for. The error is an *Invalid.
func Decode[T any](data []byte, format Format) (T, *Source, error) {
	var req T
	src, err := decode(data, format, &req)
	return req, src, err
}

// Patch changes what into points to by a JSON merge patch (RFC 7396): named fields get their new values, null resets one. After an error, an
// *Invalid, into holds a part of the changes and is of no use.
func Patch(data []byte, format Format, into any) (*Source, error) {
	return decodeWith(data, textForm{format: format, most: MaxBytes, example: `{"description": "mine"}`, patch: true}, into)
}

// DecodeText reads a YAML text that people write by hand: as Decode, and problems carry columns too.
func DecodeText[T any](data []byte) (T, *Source, error) {
	var into T
	src, err := decodeWith(data, textForm{format: YAML, most: MaxBytes, example: "name: mine", columns: true}, &into)
	return into, src, err
}

// decode reads text into the struct that into points to.
func decode(data []byte, format Format, into any) (*Source, error) {
	return decodeWith(data, textForm{format: format, most: MaxBytes, example: "name: c1"}, into)
}

// textForm is what is known of a text before it is read.
type textForm struct {
	format Format
	// most is how many bytes it may hold.
	most int
	// example is a field of it, for those who wrote none.
	example string
	// columns are told in problems as well.
	columns bool
	// patch: it is a merge patch, where null resets a field and a mapping changes the one that is there.
	patch bool
}

func decodeWith(data []byte, form textForm, into any) (*Source, error) {
	root, err := parse(data, form)
	if err != nil {
		return nil, err
	}
	d := decoder{source: &Source{lines: map[string]int{}, columns: map[string]int{}, resets: map[string]bool{}}, textForm: form}
	d.object(root, into)
	if len(d.problems) > 0 {
		return d.source, &Invalid{Problems: d.problems}
	}
	return d.source, nil
}
