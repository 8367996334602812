package wayout

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// siteTable matches the tables that hold a set "switched": the one of a node's networks, and one for each site of stand-in nodes.
var siteTable = regexp.MustCompile(`^inet (nm|nearmetal_[0-9a-f]{8})$`)

// Listing is what matters here of what `nft list ruleset` prints.
type Listing struct {
	// Switched holds the links in the set "switched" of each site's table, by table: "inet nm".
	Switched map[string][]string
	// Drops names the chains of others that drop forwarded packets unless a rule accepts them.
	Drops []string
	// Docker: Docker's chain for rules of others exists.
	Docker bool
}

// Others returns the links that other tables than this one name.
func (l Listing) Others(own string) []string {
	var links []string
	for table, switched := range l.Switched {
		if table != own {
			links = append(links, switched...)
		}
	}
	slices.Sort(links)
	return slices.Compact(links)
}

// dockerTable and dockerChain are where Docker takes rules of others; it evaluates them before its own.
const (
	dockerTable = "ip filter"
	dockerChain = "DOCKER-USER"
)

// ParseListing reads a listing of the ruleset.
func ParseListing(text string) Listing {
	list := Listing{Switched: map[string][]string{}}
	var table, block string
	inElements := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "table "); ok {
			table, block = strings.TrimSuffix(name, " {"), ""
			if siteTable.MatchString(table) {
				list.Switched[table] = nil
			}
			continue
		}
		if name, ok := strings.CutSuffix(line, " {"); ok && !inElements {
			block = name
			list.Docker = list.Docker || table == dockerTable && block == "chain "+dockerChain
			continue
		}
		if siteTable.MatchString(table) {
			if block == "set switched" && (inElements || strings.HasPrefix(line, "elements = {")) {
				list.Switched[table] = append(list.Switched[table], elements(line)...)
				inElements = !strings.HasSuffix(line, "}")
			}
			continue
		}
		if strings.HasPrefix(line, "type filter hook forward ") && strings.Contains(line, "policy drop") && !strings.HasPrefix(table, "bridge ") {
			list.Drops = append(list.Drops, block+" of table "+table)
		}
	}
	if list.Docker { // its rules say what passes the chain that Docker made drop
		list.Drops = slices.DeleteFunc(list.Drops, func(chain string) bool { return chain == "chain FORWARD of table "+dockerTable })
	}
	return list
}

// elements returns the names in a line of an element list.
func elements(line string) []string {
	line = strings.TrimSuffix(strings.TrimPrefix(line, "elements = {"), "}")
	var names []string
	for e := range strings.SplitSeq(line, ",") {
		if e = strings.Trim(strings.TrimSpace(e), `"`); e != "" {
			names = append(names, e)
		}
	}
	return names
}

// Docker is a site's part of Docker's chain. Docker makes the machine drop what it forwards for anybody else, and has that chain for
// those that need more.
type Docker struct {
	// Exists: Docker has been started here.
	Exists bool
	// Handles are the numbers of the site's rules.
	Handles []int
}

// DockerChain are the arguments of nft that print what ParseDocker reads.
func DockerChain() []string {
	return append([]string{"-a", "list", "chain"}, append(strings.Fields(dockerTable), dockerChain)...)
}

// ParseDocker finds the rules for the site's links in Docker's chain.
func ParseDocker(text, links string) Docker {
	d := Docker{Exists: true}
	for line := range strings.Lines(text) {
		rule, handle, ok := strings.Cut(strings.TrimSpace(line), " # handle ")
		number, err := strconv.Atoi(handle)
		if ok && err == nil && strings.HasSuffix(rule, " comment "+dockerComment(links)) {
			d.Handles = append(d.Handles, number)
		}
	}
	return d
}

func dockerComment(links string) string { return strconv.Quote("nearmetal " + links) }

// Script returns the commands for nft that make the site's rules be there if they are wanted, "" if nothing is to do. They let pass what
// comes from the links or goes to them; the site's own rules say what of that is dropped.
func (d Docker) Script(links string, wanted bool) string {
	const both = 2
	if !d.Exists || wanted && len(d.Handles) == both || !wanted && len(d.Handles) == 0 {
		return ""
	}
	var b strings.Builder
	for _, handle := range d.Handles {
		fmt.Fprintf(&b, "delete rule %s %s handle %d\n", dockerTable, dockerChain, handle)
	}
	if wanted {
		for _, side := range []string{"oifname", "iifname"} {
			// With a counter, as iptables writes rules: it must be able to list its table.
			fmt.Fprintf(&b, "insert rule %s %s %s %q counter accept comment %s\n", dockerTable, dockerChain, side, links, dockerComment(links))
		}
	}
	return b.String()
}

// Advice says what may keep the links' packets from the outside, and what to do about it; "" if nothing does.
func Advice(seen Seen, l Listing, links string) string {
	for _, link := range seen.Uplinks {
		if seen.Router && !slices.Contains(seen.Forwarding, link) {
			return fmt.Sprintf("this machine forwards packets (net.ipv4.ip_forward is 1), but forwarding is switched off for %s; run: sysctl -w net/ipv4/conf/%[1]s/forwarding=1", link)
		}
	}
	if len(l.Drops) == 0 {
		return ""
	}
	return fmt.Sprintf("%s drops forwarded packets unless one of its rules accepts them; accept packets from and to the links %s, for example with "+
		"`iptables -I FORWARD -i %[3]s -j ACCEPT` and `iptables -I FORWARD -o %[3]s -j ACCEPT`", strings.Join(l.Drops, " and "), links, strings.Replace(links, "*", "+", 1))
}
