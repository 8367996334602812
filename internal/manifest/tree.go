package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/nearmetal/nearmetal/api"
)

// kind is the type of a value as written.
type kind string

const (
	kindNull   kind = "nothing"
	kindBool   kind = "true or false"
	kindNumber kind = "a number"
	kindString kind = "text"
	kindList   kind = "a list"
	kindMap    kind = "a mapping"
)

// value is one value as written, with its place: the common form of YAML and JSON.
type value struct {
	kind   kind
	line   int
	column int    // of YAML; 0 else
	text   string // scalars; strings without their quotes
	raw    string // of YAML, as written
	fields []field
	items  []value
}

type field struct {
	key    string
	line   int
	column int
	value  value
}

const (
	// maxDepth is more than any request nests.
	maxDepth = 16
	// MaxBytes is the most a request may hold; the largest that means something is a small part of it.
	MaxBytes = 256 << 10
)

// parse reads text into its common form.
func parse(data []byte, form textForm) (value, error) {
	if len(data) > form.most {
		return value{}, malformed(0, "is %d bytes long; at most %d are possible", len(data), form.most)
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if len(bytes.TrimSpace(data)) == 0 {
		return value{}, empty(form)
	}
	if err := notText(data); err != nil {
		return value{}, err
	}
	if form.format == JSON {
		return parseJSON(data)
	}
	return parseYAML(data, form)
}

// malformed is the error of text that can't be read.
func malformed(line int, format string, args ...any) error {
	return &Invalid{Malformed: true, Problems: []api.FieldProblem{{Line: line, Message: fmt.Sprintf(format, args...)}}}
}

func empty(form textForm) error {
	return malformed(0, "is empty; write fields, for example: %s", form.example)
}

func parseYAML(data []byte, form textForm) (value, error) {
	if line := tooDeep(data); line > 0 {
		return value{}, malformed(line, "nests deeper than %d levels", maxDepth)
	}
	if line := tabIndented(data); line > 0 && Detect(data) == YAML {
		return value{}, malformed(line, "is indented by a tab; YAML allows spaces only")
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		var y yaml.Error
		if errors.As(err, &y) {
			line := 0
			if t := y.GetToken(); t != nil && t.Position != nil {
				line = t.Position.Line
			}
			return value{}, malformed(line, "%s", yamlProblem(y.GetMessage()))
		}
		return value{}, malformed(0, "%s", yamlProblem(err.Error()))
	}
	var body ast.Node
	for _, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if _, comment := doc.Body.(*ast.CommentGroupNode); comment {
			continue
		}
		if body != nil {
			return value{}, malformed(doc.Body.GetToken().Position.Line, "begins a second document; write one document per file")
		}
		body = doc.Body
	}
	if body == nil {
		return value{}, empty(form)
	}
	return yamlValue(body, 0)
}

// tooDeep returns the line where brackets or list dashes nest too deep, or 0; the parser recurses and takes memory by the square
// of the depth, so it must not see them. Brackets in text count too: no request that means something holds so many open ones.
func tooDeep(data []byte) int {
	depth, dashes, line := 0, 0, 1
	leading := true
	for i, c := range data {
		switch c {
		case '[', '{':
			depth++
		case ']', '}':
			depth = max(depth-1, 0)
		}
		switch {
		case c == '\n':
			line++
			dashes, leading = 0, true
		case leading && (c == '-' || c == '?') && i+1 < len(data) && data[i+1] <= ' ':
			dashes++
		case c > ' ':
			leading = false
		}
		if depth > 4*maxDepth || dashes > maxDepth {
			return line
		}
	}
	return 0
}

// yamlValue converts a node. Anchors, aliases, tags and merges are refused: what a request says stands where it is read.
func yamlValue(n ast.Node, depth int) (value, error) {
	line := n.GetToken().Position.Line
	if depth > maxDepth {
		return value{}, malformed(line, "nests deeper than %d levels", maxDepth)
	}
	v := value{line: line, column: n.GetToken().Position.Column, text: n.GetToken().Value, raw: n.GetToken().Value}
	switch n := n.(type) {
	case *ast.NullNode:
		v.kind = kindNull
	case *ast.BoolNode:
		v.kind, v.text = kindBool, fmt.Sprint(n.Value)
	case *ast.IntegerNode:
		v.kind, v.text = kindNumber, fmt.Sprint(n.Value)
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		v.kind = kindNumber
	case *ast.StringNode:
		v.kind, v.text = kindString, n.Value
	case *ast.LiteralNode:
		v.kind, v.text = kindString, n.Value.Value
	case *ast.SequenceNode:
		v.kind = kindList
		for _, item := range n.Values {
			child, err := yamlValue(item, depth+1)
			if err != nil {
				return value{}, err
			}
			v.items = append(v.items, child)
		}
	case *ast.MappingNode:
		return yamlMapping(v, n.Values, depth)
	case *ast.MappingValueNode:
		return yamlMapping(v, []*ast.MappingValueNode{n}, depth)
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		return value{}, malformed(line, "uses a YAML anchor, alias, tag or merge; write the value itself")
	default:
		return value{}, malformed(line, "uses YAML syntax (%s) that requests don't support", n.Type())
	}
	return v, nil
}

func yamlMapping(v value, entries []*ast.MappingValueNode, depth int) (value, error) {
	v.kind = kindMap
	for i, entry := range entries {
		key := entry.Key.GetToken()
		if i == 0 {
			v.line, v.column = key.Position.Line, key.Position.Column
		}
		switch entry.Key.(type) {
		case *ast.StringNode, *ast.IntegerNode, *ast.BoolNode, *ast.FloatNode, *ast.NullNode:
		default:
			return value{}, malformed(key.Position.Line, "has a key that is not a name")
		}
		child, err := yamlValue(entry.Value, depth+1)
		if err != nil {
			return value{}, err
		}
		if entry.Value.GetToken().Type == token.MappingValueType || child.line < key.Position.Line {
			child.line, child.column = key.Position.Line, key.Position.Column
		}
		v.fields = append(v.fields, field{key: key.Value, line: key.Position.Line, column: key.Position.Column, value: child})
	}
	return v, nil
}

func parseJSON(data []byte) (value, error) {
	var any json.RawMessage
	if err := json.Unmarshal(data, &any); err != nil {
		var syntax *json.SyntaxError
		if !errors.As(err, &syntax) {
			return value{}, malformed(0, "is not JSON: %v", err)
		}
		return value{}, jsonProblem(data, syntax)
	}
	r := jsonReader{data: data, dec: json.NewDecoder(bytes.NewReader(data))}
	r.dec.UseNumber()
	return r.value(0)
}

// lineAt is the line of the byte at offset.
func lineAt(data []byte, offset int64) int {
	return 1 + bytes.Count(data[:min(offset, int64(len(data)))], []byte("\n"))
}

// jsonReader reads JSON that is known to be well-formed.
type jsonReader struct {
	data []byte
	dec  *json.Decoder
	// counted newlines up to offset: lines are found in one pass.
	offset int64
	line   int
}

// next reads one token and its line.
func (r *jsonReader) next() (json.Token, int, error) {
	t, err := r.dec.Token()
	if err != nil {
		return nil, 0, fmt.Errorf("read JSON: %w", err)
	}
	end := r.dec.InputOffset()
	r.line += bytes.Count(r.data[r.offset:end], []byte("\n"))
	r.offset = end
	return t, r.line + 1, nil
}

func (r *jsonReader) value(depth int) (value, error) {
	t, line, err := r.next()
	if err != nil {
		return value{}, err
	}
	if depth > maxDepth {
		return value{}, malformed(line, "nests deeper than %d levels", maxDepth)
	}
	v := value{line: line}
	switch t := t.(type) {
	case nil:
		v.kind, v.text = kindNull, "null"
	case bool:
		v.kind, v.text = kindBool, fmt.Sprint(t)
	case json.Number:
		v.kind, v.text = kindNumber, t.String()
	case string:
		v.kind, v.text = kindString, t
	case json.Delim:
		if t == '[' {
			return r.list(v, depth)
		}
		return r.object(v, depth)
	}
	return v, nil
}

func (r *jsonReader) list(v value, depth int) (value, error) {
	v.kind = kindList
	for r.dec.More() {
		item, err := r.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		v.items = append(v.items, item)
	}
	_, _, err := r.next()
	return v, err
}

func (r *jsonReader) object(v value, depth int) (value, error) {
	v.kind = kindMap
	for r.dec.More() {
		key, line, err := r.next()
		if err != nil {
			return value{}, err
		}
		name, _ := key.(string)
		child, err := r.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		v.fields = append(v.fields, field{key: name, line: line, value: child})
	}
	_, _, err := r.next()
	return v, err
}
