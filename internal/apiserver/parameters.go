package apiserver

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/manifest"
)

// queries are the query parameters that each operation of the document takes, by the mux's pattern. The table is complete once everything is
// mounted and documented.
func queries(doc *huma.OpenAPI) map[string][]*huma.Param {
	all := map[string][]*huma.Param{}
	for path, item := range doc.Paths {
		for method, op := range methods(item) {
			pattern := method + " " + path
			all[pattern] = []*huma.Param{}
			for _, p := range op.Parameters {
				if p.In == "query" {
					all[pattern] = append(all[pattern], p)
				}
			}
		}
	}
	return all
}

// checkQuery refuses a query that the operation does not document: an unknown name, a name given twice, or a value of another type. A misspelled
// dry_run must not carry out what it was to try.
func checkQuery(raw string, known []*huma.Param) *failure {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return failFields(codeParameter, api.FieldProblem{
			Location: "query", Value: raw, Message: "can't be parsed; join NAME=VALUE pairs by '&' and percent-encode other characters",
		})
	}
	names := make([]string, len(known))
	for i, p := range known {
		names[i] = p.Name
	}
	slices.Sort(names)
	var problems []api.FieldProblem
	for name, values := range query {
		i := slices.IndexFunc(known, func(p *huma.Param) bool { return p.Name == name })
		problem := ""
		switch {
		case i < 0:
			problem = unknownParameter(name, names)
		case len(values) > 1:
			problem = fmt.Sprintf("is given %d times; keep one", len(values))
		default:
			problem = valueProblem(values[0], known[i].Schema)
		}
		if problem != "" {
			problems = append(problems, api.FieldProblem{Location: "query." + name, Value: values[0], Message: problem})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	slices.SortFunc(problems, func(a, b api.FieldProblem) int { return strings.Compare(a.Location, b.Location) })
	return failFields(codeParameter, problems...)
}

func unknownParameter(name string, names []string) string {
	if near := manifest.Closest(name, names); near != "" {
		return fmt.Sprintf("is not a parameter; did you mean %q?", near)
	}
	if len(names) == 0 {
		return "is not a parameter; this path takes none"
	}
	return "is not a parameter; this path takes " + quoteAll(names)
}

// valueProblem reports why a text is no value of a parameter, or "".
func valueProblem(text string, schema *huma.Schema) string {
	switch schema.Type {
	case huma.TypeBoolean:
		if text != "true" && text != "false" {
			return "is neither true nor false"
		}
	case huma.TypeInteger:
		least, most := int64(0), int64(math.MaxInt64)
		if schema.Minimum != nil {
			least = int64(*schema.Minimum)
		}
		if schema.Maximum != nil {
			most = int64(*schema.Maximum)
		}
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n < least || n > most {
			return fmt.Sprintf("is not a whole number from %d to %d", least, most)
		}
	case huma.TypeString:
		if n := utf8.RuneCountInString(text); schema.MaxLength != nil && n > *schema.MaxLength {
			return fmt.Sprintf("is %d characters long; at most %d are possible", n, *schema.MaxLength)
		}
		if len(schema.Enum) > 0 && !slices.Contains(schema.Enum, any(text)) {
			return enumProblem(text, schema.Enum)
		}
	}
	return ""
}

func enumProblem(text string, enum []any) string {
	words := make([]string, len(enum))
	for i, w := range enum {
		words[i] = fmt.Sprint(w)
	}
	if near := manifest.Closest(text, words); near != "" {
		return fmt.Sprintf("is not known; did you mean %q?", near)
	}
	return "is not known; use one of " + quoteAll(words)
}
