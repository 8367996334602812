package plan

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// ownTable matches the names of this product's tables, also those earlier versions made for each network.
var ownTable = regexp.MustCompile(`^table (\w+ nm\d*|inet nmseal) \{$`)

// ParseListing reads this product's tables out of what `nft -y -p list ruleset` prints, or out of a script of ours.
func ParseListing(listing string) Ruleset {
	rules := Ruleset{}
	p := tableParser{}
	for line := range strings.Lines(listing) {
		line = strings.TrimSpace(line)
		if p.name == "" {
			if m := ownTable.FindStringSubmatch(line); m != nil {
				p = tableParser{name: m[1], text: []string{line}, sets: map[string][]string{}, parts: map[string]string{}, depth: 1}
			}
			continue
		}
		p.line(line)
		if p.depth == 0 {
			rules[p.name] = p.table().and(rules[p.name])
			p = tableParser{}
		}
	}
	return rules
}

// OthersBridge reports whether others have rules for bridged frames in what `nft -y -p list ruleset` prints.
func OthersBridge(listing string) bool {
	return othersHook(listing, regexp.MustCompile(`^table bridge `), regexp.MustCompile(`\bhook `))
}

// OthersUnderlay reports whether others have rules for IPv4 packets to or from this node in what `nft -y -p list ruleset` prints.
func OthersUnderlay(listing string) bool {
	return othersHook(listing, regexp.MustCompile(`^table (ip|inet|netdev) `), regexp.MustCompile(`\bhook (prerouting|input|output|postrouting|ingress|egress)\b`))
}

// othersHook reports whether a chain of others is at a hook like this in a table like this.
func othersHook(listing string, table, hook *regexp.Regexp) bool {
	others := false // in the middle of a table of theirs
	for line := range strings.Lines(listing) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "table ") {
			others = table.MatchString(line) && !ownTable.MatchString(line)
		}
		if others && strings.HasPrefix(strings.TrimSpace(line), "type ") && hook.MatchString(line) {
			return true
		}
	}
	return false
}

// ownPart matches the beginnings of sets and chains that belong to one port, one group or one project.
var ownPart = regexp.MustCompile(`^(set|chain) \w+_(nmp|nmg|nmo)[0-9a-f]{10} \{$`)

// ownSet matches the beginnings of sets and maps.
var ownSet = regexp.MustCompile(`^(?:set|map) (\w+) \{$`)

// tableParser is in the middle of a table.
type tableParser struct {
	name       string
	text       []string
	sets       map[string][]string
	parts      map[string]string
	depth      int // of braces
	set        string
	inElements bool
	dynamic    bool     // packets fill the set
	part       []string // the lines of the part that it is in the middle of
}

// table returns what was read.
func (p *tableParser) table() Table {
	return Table{Text: skeleton(strings.Join(p.text, "\n")), Sets: sortSets(p.sets), Parts: p.parts}
}

// Parts returns the text of a table of which a script adds parts only.
func Parts(table string) string { return "table " + table + " {\n}\n" }

// and adds the parts of a table that a script makes in several blocks.
func (t Table) and(before Table) Table {
	if before.Text == "" {
		return t
	}
	maps.Copy(before.Parts, t.Parts)
	maps.Copy(before.Sets, t.Sets)
	return before
}

func (p *tableParser) line(line string) {
	if p.inElements || strings.HasPrefix(line, "elements = {") {
		rest, closed := strings.CutSuffix(strings.TrimPrefix(line, "elements = {"), "}")
		if !p.dynamic {
			p.sets[p.set] = append(p.sets[p.set], splitElements(rest)...)
		}
		p.inElements = !closed
		return
	}
	if line == "" {
		return
	}
	if m := ownSet.FindStringSubmatch(line); m != nil {
		p.set, p.dynamic = m[1], false
		p.sets[p.set] = nil
	}
	if strings.HasPrefix(line, "flags dynamic") {
		p.dynamic = true
		delete(p.sets, p.set)
	}
	if p.part != nil || p.depth == 1 && ownPart.MatchString(line) {
		p.part = append(p.part, line)
		if line == "}" {
			p.parts[strings.TrimSuffix(p.part[0], " {")] = skeleton(strings.Join(p.part, "\n"))
			p.part = nil
		}
		return
	}
	p.text = append(p.text, line)
	if strings.HasSuffix(line, "{") {
		p.depth++
	}
	if line == "}" {
		p.depth--
	}
}

// splitElements splits a piece of an element list at its commas.
func splitElements(list string) []string {
	var elements []string
	for e := range strings.SplitSeq(list, ",") {
		if e = strings.TrimSpace(e); e != "" {
			elements = append(elements, e)
		}
	}
	slices.Sort(elements)
	return elements
}

// skeleton is the text of a table, evenly indented and without empty lines.
func skeleton(text string) string {
	var b strings.Builder
	depth := 0
	for line := range strings.Lines(text) {
		line = normal6(normalMark(strings.TrimSpace(line)))
		if line == "" {
			continue
		}
		if line == "}" {
			depth--
		}
		b.WriteString(strings.Repeat("\t", max(depth, 0)))
		b.WriteString(line)
		b.WriteByte('\n')
		if strings.HasSuffix(line, "{") {
			depth++
		}
	}
	return b.String()
}
