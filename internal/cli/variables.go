package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// variables makes NAME=VALUE the value of a flag that may be repeated. The value is taken as it is: pflag's maps read commas and quotes as CSV,
// so they refuse or change values such as XML.
type variables struct{ values *map[string]string }

// String is empty for none, so that help shows no default.
func (v variables) String() string {
	if v.values == nil {
		return ""
	}
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(*v.values)) {
		texts = append(texts, name+"="+(*v.values)[name])
	}
	return strings.Join(texts, " ")
}

// Set adds a variable, or replaces the one of that name.
func (v variables) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("%q is not NAME=VALUE", text)
	}
	if *v.values == nil {
		*v.values = map[string]string{}
	}
	(*v.values)[name] = value
	return nil
}

// Type names the kind of value in help.
func (v variables) Type() string { return "NAME=VALUE" }
