package plan

import (
	"fmt"
	"strings"
)

// rulesScript returns the one transaction that makes seen like want, "" when they are alike.
func rulesScript(want, seen Ruleset) string {
	var b strings.Builder
	for _, name := range tables() {
		w, wanted := want[name]
		s, exists := seen[name]
		switch {
		case !wanted && !exists:
		case !wanted:
			fmt.Fprintf(&b, "delete table %s\n", name)
		case exists && s.Text == w.Text && sameSets(w.Parts, s.Parts):
			changeTable(&b, name, w, s)
		default:
			if exists {
				fmt.Fprintf(&b, "delete table %s\n", name)
			}
			b.WriteString(newTable(name, w))
		}
	}
	for _, name := range sortedKeys(seen) {
		if !isTable(name) {
			fmt.Fprintf(&b, "delete table %s\n", name)
		}
	}
	return b.String()
}

// newTable returns the commands that make a table.
func newTable(name string, want Table) string {
	var b strings.Builder
	b.WriteString(want.Text)
	changeTable(&b, name, want, Table{})
	return b.String()
}

// sameSets reports whether the sets that stay are defined as wanted. One that is not can't be changed: rules refer to it.
func sameSets(want, seen map[string]string) bool {
	for part, text := range seen {
		if w, stays := want[part]; stays && w != text && strings.HasPrefix(part, "set ") {
			return false
		}
	}
	return true
}

// changeTable writes the commands that make the parts and the elements of a table as wanted. Elements of maps go before the chains that they
// lead to, and chains before the sets that they look into. All come the other way round.
func changeTable(b *strings.Builder, table string, want, seen Table) {
	before := b.Len()
	for _, set := range sortedKeys(want.Sets) {
		if remove := without(seen.Sets[set], want.Sets[set]); len(remove) > 0 {
			fmt.Fprintf(b, "delete element %s %s { %s }\n", table, set, strings.Join(remove, ", "))
		}
	}
	removeParts(b, table, want.Parts, seen.Parts)
	if b.Len() > before {
		forgetAdmitted(b, table, want.Parts, seen.Parts)
	}
	var missing []string
	for _, prefix := range []string{"set ", "chain "} {
		for _, part := range sortedKeys(want.Parts) {
			if strings.HasPrefix(part, prefix) && seen.Parts[part] != want.Parts[part] {
				missing = append(missing, want.Parts[part])
			}
		}
	}
	if len(missing) > 0 {
		b.WriteString(skeleton("table " + table + " {\n" + strings.Join(missing, "") + "}\n"))
	}
	for _, set := range sortedKeys(want.Sets) {
		if add := without(want.Sets[set], seen.Sets[set]); len(add) > 0 {
			fmt.Fprintf(b, "add element %s %s { %s }\n", table, set, strings.Join(add, ", "))
		}
	}
}

// forgetAdmitted writes the commands that forget which flows rules let in: one of the rules may be gone.
func forgetAdmitted(b *strings.Builder, table string, want, seen map[string]string) {
	for _, part := range sortedKeys(seen) {
		name, isSet := strings.CutPrefix(part, "set ")
		if _, stays := want[part]; stays && isSet && strings.HasPrefix(name, admitted) {
			fmt.Fprintf(b, "flush set %s %s\n", table, name)
		}
	}
}

// removeParts writes the commands that empty the chains which are to change, and remove the parts which are to go.
func removeParts(b *strings.Builder, table string, want, seen map[string]string) {
	for _, part := range sortedKeys(seen) {
		if strings.HasPrefix(part, "chain ") && want[part] != seen[part] {
			fmt.Fprintf(b, "flush chain %s %s\n", table, strings.TrimPrefix(part, "chain "))
		}
	}
	for _, kind := range []string{"chain", "set"} {
		for _, part := range sortedKeys(seen) {
			name, ofKind := strings.CutPrefix(part, kind+" ")
			if _, stays := want[part]; ofKind && !stays {
				fmt.Fprintf(b, "delete %s %s %s\n", kind, table, name)
			}
		}
	}
}
