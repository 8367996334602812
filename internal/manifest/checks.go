package manifest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

// Defaults of a check.
const (
	DefaultCheckInterval = api.Duration(30 * time.Second)
	DefaultCheckTimeout  = api.Duration(10 * time.Second)
	DefaultCheckFailures = 3
)

// Limits of checks.
const (
	MaxChecks        = 32
	minCheckInterval = api.Duration(time.Second)
	maxCheckInterval = api.Duration(24 * time.Hour)
	minCheckTimeout  = api.Duration(time.Second)
	maxCheckTimeout  = api.Duration(10 * time.Minute)
	MaxCheckFailures = 100
	// maxChecksText bounds the commands of a group's checks together: each of its members gets all of them.
	maxChecksText = 16 << 10
)

// checks checks a group's checks and fills in their defaults.
func (n *normalizer) checks(path string, checks []api.Check) []api.Check {
	if len(checks) > MaxChecks {
		n.add(path, strconv.Itoa(len(checks)), "has %d checks; at most %d are possible", len(checks), MaxChecks)
		return checks
	}
	first := map[string]int{}
	checks = slices.Clone(checks)
	for i := range checks {
		c, at := &checks[i], fmt.Sprintf("%s[%d]", path, i)
		if c.Name == "" && !n.src.Has(at+".name") {
			n.missing(at, "name", "is missing; every check needs a name")
		} else {
			n.label(at+".name", c.Name, MaxLabel)
		}
		if j, ok := first[c.Name]; ok && c.Name != "" {
			n.add(at+".name", c.Name, "%q is also the name of %s[%d]; give every check its own name", c.Name, path, j)
		} else {
			first[c.Name] = i
		}
		n.checkCommand(at, c.Command)
		n.span(at+".interval", &c.Interval, DefaultCheckInterval, minCheckInterval, maxCheckInterval)
		n.span(at+".timeout", &c.Timeout, DefaultCheckTimeout, minCheckTimeout, maxCheckTimeout)
		n.atLeast(at+".failures", &c.Failures, DefaultCheckFailures, MaxCheckFailures, "failure in a row")
	}
	text := 0
	for _, c := range checks {
		for _, word := range c.Command {
			text += len(word)
		}
	}
	if text > maxChecksText {
		n.add(path, "", "hold %d bytes of commands; at most %d are possible: put a longer check into a script of the environment", text, maxChecksText)
	}
	return checks
}

func (n *normalizer) checkCommand(at string, command []string) {
	path := at + ".command"
	switch {
	case len(command) == 0 && !n.src.Has(path):
		n.missing(at, "command", "is missing; give the program and its arguments, for example [\"test\", \"-e\", \"/home\"]")
		return
	case len(command) == 0:
		n.add(path, "", "is an empty list; give the program and its arguments")
		return
	case len(command) > MaxArgs:
		n.add(path, strconv.Itoa(len(command)), "has %d words; at most %d are possible", len(command), MaxArgs)
		return
	case command[0] == "":
		n.add(path+"[0]", "", "is empty; the first word is the program to run")
	}
	for i, word := range command {
		if strings.ContainsRune(word, 0) {
			n.add(fmt.Sprintf("%s[%d]", path, i), "", "holds a zero byte, which an argument can't")
		}
	}
}

// missing is a problem of a field that is not there, at the line of what it should stand in.
func (n *normalizer) missing(at, field, message string) {
	n.problems = append(n.problems, api.FieldProblem{Location: join(at, field), Line: n.src.Line(at), Message: message})
}

// span fills in the default of a time span that was not given and refuses one out of bounds; a default of 0 is no limit.
func (n *normalizer) span(path string, d *api.Duration, fallback, least, most api.Duration) {
	switch {
	case *d == 0 && !n.src.Has(path):
		*d = fallback
	case *d < least:
		n.add(path, d.String(), "%s is too short; give at least %s, or omit the field", *d, least)
	case *d > most:
		n.add(path, d.String(), "%s is too long; the limit is %s", *d, most)
	}
}

// between refuses a number out of bounds.
func (n *normalizer) between(path string, v, least, most int) {
	switch {
	case v < least:
		n.add(path, strconv.Itoa(v), "%d is too small; give at least %d", v, least)
	case v > most:
		n.add(path, strconv.Itoa(v), "%d is too large; the limit is %d", v, most)
	}
}
