package plan

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// block is an object of a table as nft(8) prints it.
func block(head string, lines ...string) string {
	text := head + " {\n"
	for _, line := range lines {
		text += line + "\n"
	}
	return skeleton(text + "}\n")
}

// addSets adds the sets that the port's packets fill.
func (g guard) addSets(parts map[string]string) {
	dynamic := func(set, typeof string, size int) {
		set += g.tail()
		parts["set "+set] = block("set "+set, "typeof "+typeof, fmt.Sprintf("size %d", size), "flags dynamic,timeout")
	}
	dynamic("flows", g.flowSent, maxFlows)
	dynamic("closing", g.flowSent, maxClosing)
	if g.admits() {
		dynamic(admitted, g.flowSent, maxAdmitted)
	}
	dynamic("echoes", g.echoSent, maxEchoes)
	if g.restricted() {
		dynamic("askers", g.askerReplied, maxAskers)
	}
}

// addChains adds the chains that the port's packets pass.
func (g guard) addChains(parts map[string]string) {
	add := func(chain string, lines ...[]string) {
		chain = "chain " + chain + g.tail()
		parts[chain] = block(chain, slices.Concat(lines...)...)
	}
	g.addArriving(add)
	g.addNoting(add)
	if g.restricted() {
		g.addRestricted(add)
	} else {
		g.addOpen(add)
	}
}

// chainAdder adds a chain of the port with these rules.
type chainAdder func(chain string, lines ...[]string)

// admits reports whether rules for single protocols let packets in. A set with ranges takes a packet a tenth of its way through the node, so
// flows that such a set allowed are noted for 30 seconds. A plan that takes anything from rules forgets them all.
func (g guard) admits() bool { return len(g.allowed(securitygroup.In, g.arriving, "")) > 0 }

// known is the rule that accepts packets of flows that were admitted, none of which is ICMP. It comes first, because it ends the way of most
// packets that a port with such rules takes and sends.
func (g guard) known(key string) []string {
	if !g.admits() {
		return nil
	}
	return []string{fmt.Sprintf("%s @%s%s accept", key, admitted, g.tail())}
}

// admitted begins the names of sets of flows that rules let in.
const admitted = "admitted"

// addArriving adds the chains for packets to the port.
func (g guard) addArriving(add chainAdder) {
	address := g.number(g.of(g.network, g.port.Address))
	var asked []string
	if g.restricted() {
		// Before any verdict: what a rule does not allow leaves an element, too. A reply has to pass a rule as well. Packets to other addresses come by
		// when the bridge floods them, and ask this port nothing.
		for _, toIt := range []string{g.destination + " " + address, g.isToMany} {
			asked = append(asked, fmt.Sprintf("%s %s update @askers%s { %s timeout 10m }", g.hasReplies, toIt, g.tail(), g.askerOf))
		}
	}
	add("in",
		g.beforeRules(),
		asked,
		g.anything(securitygroup.In, g.source, "accept"),
		[]string{
			g.hasOptions + " drop",
			g.isFragment + " drop",
		},
		g.known(g.flowReply),
		[]string{
			fmt.Sprintf("%s goto icmp%s", g.isICMP, g.tail()),
			fmt.Sprintf("%s %s %s @flows%s accept", g.destination, address, g.flowReply, g.tail()),
		},
		g.allowed(securitygroup.In, g.arriving, "goto admit"+g.tail()),
		[]string{
			fmt.Sprintf("%s %s %s @closing%s accept", g.destination, address, g.flowReply, g.tail()),
		},
		g.fromNode(),
		[]string{"drop"},
	)
	if g.admits() {
		admit := func(key string) []string {
			return []string{fmt.Sprintf("update @%s%s { %s timeout 30s } accept", admitted, g.tail(), key), "accept"}
		}
		add("admit", admit(g.flowReply))
		if !g.restricted() {
			add("answer", admit(g.flowSent))
		}
	}
	if g.version == securitygroup.IPv4 {
		add("other", []string{"meta protocol arp accept", "drop"})
	}
	add("icmp",
		[]string{fmt.Sprintf("%s %s %s %s @echoes%s accept", g.isEchoReply, g.destination, address, g.echoReply, g.tail())},
		g.allowed(securitygroup.In, g.arrivingICMP, "accept"),
		// An error is let in if it quotes a packet of the port's own.
		[]string{
			fmt.Sprintf("%s %s %s %s goto error%s", g.isError, g.quotedSource, address, g.quotedStart, g.tail()),
			"drop",
		},
	)
	add("error",
		g.anything(securitygroup.In, g.quotedDestination, "accept"),
		[]string{
			fmt.Sprintf("%s @flows%s accept", g.flowQuoted, g.tail()),
			fmt.Sprintf("%s @closing%s accept", g.flowQuoted, g.tail()),
			fmt.Sprintf("%s %s @echoes%s accept", g.quotesEcho, g.echoQuoted, g.tail()),
			g.quotesICMP + " drop",
		},
		g.allowed(securitygroup.In, g.quotedAnswer, "accept"),
		[]string{"drop"},
	)
}

// addNoting adds the chains that note what the port may get replies to. When the port's set is full, the packet passes all the same. A
// connection that the port closes makes room at once: its last packets need a place for a minute only, in a set of its own.
func (g guard) addNoting(add chainAdder) {
	update := func(set, timeout string) string {
		return fmt.Sprintf("update @%s%s { %s timeout %s }", set, g.tail(), g.flowSent, timeout)
	}
	add("note", []string{
		fmt.Sprintf("%s %s %s @closing%s accept", g.isTCP, g.isPassing, g.flowSent, g.tail()),
		"goto renew" + g.tail(),
	})
	add("renew", []string{
		fmt.Sprintf("%s %s accept", g.isTCP+" "+g.isPassing, update("flows", "10m")),
		fmt.Sprintf("%s %s delete @flows%s { %s } accept", g.isTCP+" "+g.isClosing, update("closing", "1m"), g.tail(), g.flowSent),
		fmt.Sprintf("%s %s accept", g.hasPorts, update("flows", "1m")),
		"accept",
	})
	add("noteping", []string{fmt.Sprintf("update @echoes%s { %s timeout 1m } accept", g.tail(), g.echoSent), "accept"})
}

// addOpen adds the chains for packets from a port that may send anything. Replies to packets that rules allow are not noted: otherwise others
// could fill the port's set.
func (g guard) addOpen(add chainAdder) {
	add("out",
		g.fromMember(),
		g.anything(securitygroup.In, g.destination, "accept"),
		[]string{
			g.hasOptions + " accept",
			g.isLater + " accept",
		},
		g.known(g.flowSent),
		[]string{
			fmt.Sprintf("%s goto ping%s", g.isICMP, g.tail()),
			fmt.Sprintf("%s @flows%s goto renew%s", g.flowSent, g.tail(), g.tail()),
		},
		g.allowed(securitygroup.In, g.answering, "goto answer"+g.tail()),
		[]string{"goto note" + g.tail()},
	)
	add("ping", []string{fmt.Sprintf("%s goto noteping%s", g.isEcho, g.tail()), "accept"})
}

// addRestricted adds the chains for packets from a port that may send what rules allow, and replies. A reply goes to an address that sent the
// port a packet of the protocol before, from a port that rules open to that address.
func (g guard) addRestricted(add chainAdder) {
	add("out",
		g.fromMember(),
		[]string{
			fmt.Sprintf("%s goto odd%s", g.hasOptions, g.tail()),
			fmt.Sprintf("%s goto odd%s", g.isFragment, g.tail()),
			fmt.Sprintf("%s goto ping%s", g.isICMP, g.tail()),
		},
		g.toNode(),
		[]string{
			fmt.Sprintf("%s @flows%s goto renew%s", g.flowSent, g.tail(), g.tail()),
			fmt.Sprintf("%s goto begin%s", g.isOpening, g.tail()),
			fmt.Sprintf("%s @askers%s goto reply%s", g.askerReplied, g.tail(), g.tail()),
			fmt.Sprintf("goto begin%s", g.tail()),
		},
	)
	add("reply", g.anything(securitygroup.In, g.destination, "accept"), g.allowed(securitygroup.In, g.answering, "accept"), []string{"goto begin" + g.tail()})
	add("begin",
		g.anything(securitygroup.Out, g.destination, "goto note"+g.tail()),
		g.allowed(securitygroup.Out, g.leaving, "goto note"+g.tail()),
		[]string{"drop"},
	)
	add("ping",
		[]string{
			fmt.Sprintf("%s %s @askers%s accept", g.isEchoReply, g.askerReplied, g.tail()),
			fmt.Sprintf("%s %s @askers%s accept", g.isUnreached, g.askerQuoted, g.tail()),
			fmt.Sprintf("%s goto pong%s", g.isNoEcho, g.tail()),
		},
		g.anything(securitygroup.Out, g.destination, "goto noteping"+g.tail()),
		g.allowed(securitygroup.Out, g.leavingICMP, "goto noteping"+g.tail()),
		[]string{"drop"},
	)
	add("pong", g.anything(securitygroup.Out, g.destination, "accept"), g.allowed(securitygroup.Out, g.leavingICMP, "accept"), []string{"drop"})
	add("odd", g.anything(securitygroup.Out, g.destination, "accept"), []string{"drop"})
}
