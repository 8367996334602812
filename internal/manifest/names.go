package manifest

import (
	"fmt"
	"regexp"
	"strings"
)

// Limits on names.
const (
	// MaxLabel is the longest DNS label (RFC 1035, section 2.3.4).
	MaxLabel = 63
	// MaxClusterName leaves room for "-" and a member's number behind a group that is named like its cluster.
	MaxClusterName = 40
	// MaxProjectName keeps "PROJECT.NAME" short enough for keys and messages.
	MaxProjectName = 40
	// MaxLabelKey and MaxLabelValue bound the keys and values of labels and node selectors.
	MaxLabelKey   = 63
	MaxLabelValue = 63
)

// The forms of names, as regular expressions that JSON Schema reads too.
const (
	// NetworkPattern is the form of a network that a group names.
	NetworkPattern    = `^(project/([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)?)?[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	LabelPattern      = `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
	LabelKeyPattern   = `^[A-Za-z0-9]([A-Za-z0-9_./-]*[A-Za-z0-9])?$`
	LabelValuePattern = `^([A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?)?$`
	// CounterPattern is that of a counter of devices: a class, which is a DNS label, and the counter's own name.
	CounterPattern = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$`
)

var (
	dnsLabel   = regexp.MustCompile(LabelPattern)
	labelKey   = regexp.MustCompile(LabelKeyPattern)
	labelValue = regexp.MustCompile(LabelValuePattern)
	counter    = regexp.MustCompile(CounterPattern)
	recordName = regexp.MustCompile(RecordNamePattern)
)

// LabelProblem tells why a name is not a DNS label of at most maxLength characters (RFC 1123, section 2.1), or "".
func LabelProblem(name string, maxLength int) string {
	switch {
	case name == "":
		return "is empty; give a name of lower-case letters, digits and '-'"
	case len(name) > maxLength:
		return fmt.Sprintf("is %d characters long; use at most %d", len(name), maxLength)
	case dnsLabel.MatchString(name):
		return ""
	}
	problem := "is not a DNS label; use lower-case letters, digits and '-', beginning and ending with a letter or digit"
	if fixed := suggestLabel(name); fixed != "" && len(fixed) <= maxLength {
		problem += fmt.Sprintf(", for example %q", fixed)
	}
	return problem
}

// suggestLabel makes a DNS label of a name, or "" when nothing of it is left.
func suggestLabel(name string) string {
	fixed := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r == '_', r == '.', r == ' ':
			return '-'
		default:
			return -1
		}
	}, strings.ToLower(name))
	return strings.Trim(fixed, "-")
}

// KeyProblem tells why a label's key is not one, or "".
func KeyProblem(key string) string {
	if len(key) > MaxLabelKey {
		return fmt.Sprintf("is %d characters long; use at most %d", len(key), MaxLabelKey)
	}
	if !labelKey.MatchString(key) {
		return "is not a label key; use letters, digits, '-', '_', '.' and '/', beginning and ending with a letter or digit"
	}
	return ""
}

// ValueProblem tells why a label's value is not one, or "".
func ValueProblem(value string) string {
	if len(value) > MaxLabelValue {
		return fmt.Sprintf("is %d characters long; use at most %d", len(value), MaxLabelValue)
	}
	if !labelValue.MatchString(value) {
		return "is not a label value; use letters, digits, '-', '_' and '.', beginning and ending with a letter or digit"
	}
	return ""
}

// CounterProblem tells why a name is not that of a counter of devices, or "".
func CounterProblem(name string) string {
	if !counter.MatchString(name) {
		return `is not a counter of devices; write CLASS/COUNTER, such as "gpu/slices"`
	}
	return ""
}

// spareSuffix stands between a group's name and the number of a spare.
const spareSuffix = "-spare"

// SpareName is the name of a group's spare number i: room held, no machine.
func SpareName(group string, i int) string { return MemberName(group+spareSuffix, i) }

// MemberName is the name of a group's member number i.
func MemberName(group string, i int) string { return fmt.Sprintf("%s-%d", group, i) }
