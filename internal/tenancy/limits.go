package tenancy

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/nearmetal/nearmetal/api"
)

// MaxPatterns bounds the patterns of one token.
const MaxPatterns = 16

// PatternPattern is the form of a pattern for names of clusters, as a regular expression (RFC 9485).
const PatternPattern = `^[a-z0-9*-]+$`

// RoleVerbs returns what a role may do; nil for a role that only agents have.
func RoleVerbs(role api.Role) []Verb {
	switch role {
	case api.RoleAdmin:
		return api.Verbs()
	case api.RoleMember:
		return []Verb{Read, Run, Change}
	case api.RoleViewer:
		return []Verb{Read}
	default:
		return nil
	}
}

// has reports whether limits leave a verb.
func has(l api.Limits, verb Verb) bool {
	return len(l.Verbs) == 0 || verb == Read || slices.Contains(l.Verbs, verb)
}

// within refuses a verb that the limits of a principal's token leave out.
func within(p Principal, verb Verb) error {
	if has(p.Limits, verb) {
		return nil
	}
	return denied("the %s lacks the verb %q: it is limited to %s; use a token with that verb", bearer(p), verb, list(p.Limits.Verbs))
}

// Covers reports whether the limits of a principal's token leave a cluster, by its full name. Whose project it is in is for May to tell.
func Covers(p Principal, full string) bool {
	if len(p.Limits.Clusters) == 0 {
		return true
	}
	_, name := Split(full)
	return slices.ContainsFunc(p.Limits.Clusters, func(pattern string) bool {
		ok, err := path.Match(pattern, name) // a name has no slash, and a stored pattern no other sign of path.Match than *
		return ok && err == nil
	})
}

// NotCovered is the refusal of a new cluster whose name the limits of a principal's token leave out.
func NotCovered(p Principal, full string) error {
	_, name := Split(full)
	return denied("the %s is limited to clusters named %s, and %q is not such a name; choose another name", bearer(p), strings.Join(p.Limits.Clusters, ", "), name)
}

// Grants refuses, as a *Denied, a new token that may do more than the token of who makes it.
func Grants(p Principal, role api.Role, limits api.Limits) error {
	verbs := limits.Verbs
	if len(verbs) == 0 {
		verbs = RoleVerbs(role)
	}
	for _, verb := range verbs {
		if !has(p.Limits, verb) {
			return denied("the %s lacks the verb %q, so it can't make a token that has it: it is limited to %s", bearer(p), verb, list(p.Limits.Verbs))
		}
	}
	return nil
}

// NormalVerbs returns verbs in the order of api.Verbs, each once, with read; nil for none.
func NormalVerbs(given []Verb) []Verb {
	var verbs []Verb
	for _, verb := range api.Verbs() {
		if len(given) > 0 && (verb == Read || slices.Contains(given, verb)) {
			verbs = append(verbs, verb)
		}
	}
	return verbs
}

// PatternProblem says what is wrong with a pattern for names of clusters; "" if nothing is.
func PatternProblem(pattern string, maxLength int) string {
	switch {
	case pattern == "":
		return "is empty; write a name such as ci-1, or a pattern such as ci-*"
	case len(pattern) > maxLength:
		return fmt.Sprintf("is %d characters long; use at most %d", len(pattern), maxLength)
	case strings.Trim(pattern, "abcdefghijklmnopqrstuvwxyz0123456789-*") != "":
		return "is not a pattern for names of clusters; use lower-case letters, digits, '-', and * for any characters"
	default:
		return ""
	}
}

func list(verbs []Verb) string {
	words := make([]string, len(verbs))
	for i, verb := range verbs {
		words[i] = string(verb)
	}
	return strings.Join(words, ", ")
}
