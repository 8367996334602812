package plan

import (
	"fmt"
	"slices"

	"github.com/nearmetal/nearmetal/internal/securitygroup"
)

// Keys of a port's own sets, as packets that it sends have them, as replies have them, and as ICMP errors quote them.
const (
	flowSent     = destination + " . " + protocol + " . " + targetPort + " . " + sourcePort
	flowReply    = source + " . " + protocol + " . " + sourcePort + " . " + targetPort
	flowQuoted   = quotedDestination + " . " + quotedProtocol + " . " + quotedTargetPort + " . " + quotedSourcePort
	echoSent     = destination + " . " + identifier
	echoReply    = source + " . " + identifier
	echoQuoted   = quotedDestination + " . " + quotedIdentifier
	askerOf      = source + " . " + protocol
	askerReplied = destination + " . " + protocol
	askerQuoted  = destination + " . " + quotedProtocol
)

// Conditions of rules, by the numbers of RFC 791, 792, 793 and 2131.
const (
	hasOptions  = "@nh,0,8 != 0x45"
	isLater     = "@nh,48,16 & 0x1fff != 0x0" // a fragment without the ports
	isFragment  = "@nh,48,16 & 0x3fff != 0x0" // "more fragments", or an offset
	isICMP      = "@nh,72,8 0x1"
	isTCP       = "@nh,72,8 0x6"
	hasPorts    = "@nh,72,8 { 0x6, 0x11 }"
	isOpening   = "@nh,72,8 0x6 @nh,264,8 & 0x12 == 0x2" // SYN without ACK
	isPassing   = "@nh,264,8 & 0x7 == 0x0"               // none of SYN, FIN and RST
	isClosing   = "@nh,264,8 & 0x5 != 0x0"               // FIN or RST
	isEcho      = "@nh,160,8 0x8"
	isEchoReply = "@nh,160,8 0x0"
	isUnreached = "@nh,160,8 0x3"
	isError     = "@nh,160,8 { 0x3, 0xb, 0xc }" // destination unreachable, time exceeded, parameter problem
	quotesICMP  = quotedProtocol + " 0x1"
	quotesEcho  = quotesICMP + " @nh,384,8 0x8"
	fromDHCP    = "@nh,72,8 0x11 @nh,160,32 0x430044"
	toDNS       = "@nh,72,8 0x11 @nh,176,16 0x35"
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
		set += "_" + g.name
		parts["set "+set] = block("set "+set, "typeof "+typeof, fmt.Sprintf("size %d", size), "flags dynamic,timeout")
	}
	dynamic("flows", flowSent, maxFlows)
	dynamic("closing", flowSent, maxClosing)
	if g.admits() {
		dynamic(admitted, flowSent, maxAdmitted)
	}
	dynamic("echoes", echoSent, maxEchoes)
	if g.restricted() {
		dynamic("askers", askerReplied, maxAskers)
	}
}

// addChains adds the chains that the port's packets pass.
func (g guard) addChains(parts map[string]string) {
	add := func(chain string, lines ...[]string) {
		chain = "chain " + chain + "_" + g.name
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
func (g guard) admits() bool { return len(g.allowed(securitygroup.In, arriving, "")) > 0 }

// known is the rule that accepts packets of flows that were admitted, none of which is ICMP. It comes first, because it ends the way of most
// packets that a port with such rules takes and sends.
func (g guard) known(key string) []string {
	if !g.admits() {
		return nil
	}
	return []string{fmt.Sprintf("%s @%s_%s accept", key, admitted, g.name)}
}

// admitted begins the names of sets of flows that rules let in.
const admitted = "admitted"

// addArriving adds the chains for packets to the port.
func (g guard) addArriving(add chainAdder) {
	address := number(g.port.Address)
	var asked []string
	if g.restricted() {
		// Before any verdict: what a rule does not allow leaves an element, too. A reply has to pass a rule as well.
		asked = []string{fmt.Sprintf("%s { 0x1, 0x6, 0x11 } update @askers_%s { %s timeout 10m }", protocol, g.name, askerOf)}
	}
	add("in",
		[]string{"meta protocol != ip goto other_" + g.name},
		asked,
		g.anything(securitygroup.In, source, "accept"),
		[]string{
			hasOptions + " drop",
			isFragment + " drop",
		},
		g.known(flowReply),
		[]string{
			fmt.Sprintf("%s goto icmp_%s", isICMP, g.name),
			fmt.Sprintf("%s %s %s @flows_%s accept", destination, address, flowReply, g.name),
		},
		g.allowed(securitygroup.In, arriving, "goto admit_"+g.name),
		[]string{
			fmt.Sprintf("%s %s %s @closing_%s accept", destination, address, flowReply, g.name),
			fromDHCP + " accept", // only the node sends from the port of DHCP servers
			"drop",
		},
	)
	if g.admits() {
		admit := func(key string) []string {
			return []string{fmt.Sprintf("update @%s_%s { %s timeout 30s } accept", admitted, g.name, key), "accept"}
		}
		add("admit", admit(flowReply))
		if !g.restricted() {
			add("answer", admit(flowSent))
		}
	}
	add("other", []string{"meta protocol arp accept", "drop"})
	add("icmp",
		[]string{fmt.Sprintf("%s %s %s %s @echoes_%s accept", isEchoReply, destination, address, echoReply, g.name)},
		g.allowed(securitygroup.In, arrivingICMP, "accept"),
		// An error is let in if it quotes a packet of the port's own.
		[]string{
			fmt.Sprintf("%s %s %s %s goto error_%s", isError, quotedSource, address, quotedStart+" 0x45", g.name),
			"drop",
		},
	)
	add("error",
		g.anything(securitygroup.In, quotedDestination, "accept"),
		[]string{
			fmt.Sprintf("%s @flows_%s accept", flowQuoted, g.name),
			fmt.Sprintf("%s @closing_%s accept", flowQuoted, g.name),
			fmt.Sprintf("%s %s @echoes_%s accept", quotesEcho, echoQuoted, g.name),
			quotesICMP + " drop",
		},
		g.allowed(securitygroup.In, quotedAnswer, "accept"),
		[]string{"drop"},
	)
}

// addNoting adds the chains that note what the port may get replies to. When the port's set is full, the packet passes all the same. A
// connection that the port closes makes room at once: its last packets need a place for a minute only, in a set of its own.
func (g guard) addNoting(add chainAdder) {
	update := func(set, timeout string) string {
		return fmt.Sprintf("update @%s_%s { %s timeout %s }", set, g.name, flowSent, timeout)
	}
	add("note", []string{
		fmt.Sprintf("%s %s %s @closing_%s accept", isTCP, isPassing, flowSent, g.name),
		"goto renew_" + g.name,
	})
	add("renew", []string{
		fmt.Sprintf("%s %s accept", isTCP+" "+isPassing, update("flows", "10m")),
		fmt.Sprintf("%s %s delete @flows_%s { %s } accept", isTCP+" "+isClosing, update("closing", "1m"), g.name, flowSent),
		fmt.Sprintf("%s %s accept", hasPorts, update("flows", "1m")),
		"accept",
	})
	add("noteping", []string{fmt.Sprintf("update @echoes_%s { %s timeout 1m } accept", g.name, echoSent), "accept"})
}

// addOpen adds the chains for packets from a port that may send anything. Replies to packets that rules allow are not noted: otherwise others
// could fill the port's set.
func (g guard) addOpen(add chainAdder) {
	add("out",
		[]string{fromMember},
		g.anything(securitygroup.In, destination, "accept"),
		[]string{
			hasOptions + " accept",
			isLater + " accept",
		},
		g.known(flowSent),
		[]string{
			fmt.Sprintf("%s goto ping_%s", isICMP, g.name),
			fmt.Sprintf("%s @flows_%s goto renew_%s", flowSent, g.name, g.name),
		},
		g.allowed(securitygroup.In, answering, "goto answer_"+g.name),
		[]string{"goto note_" + g.name},
	)
	add("ping", []string{fmt.Sprintf("%s goto noteping_%s", isEcho, g.name), "accept"})
}

// addRestricted adds the chains for packets from a port that may send what rules allow, and replies. A reply goes to an address that sent the
// port a packet of the protocol before, from a port that rules open to that address.
func (g guard) addRestricted(add chainAdder) {
	add("out",
		[]string{
			fromMember,
			fmt.Sprintf("%s goto odd_%s", hasOptions, g.name),
			fmt.Sprintf("%s goto odd_%s", isFragment, g.name),
			fmt.Sprintf("%s goto ping_%s", isICMP, g.name),
			fmt.Sprintf("%s %s %s goto note_%s", toDNS, destination, number(g.network.Gateway), g.name), // the node's, for names
			fmt.Sprintf("%s @flows_%s goto renew_%s", flowSent, g.name, g.name),
			fmt.Sprintf("%s goto begin_%s", isOpening, g.name),
			fmt.Sprintf("%s @askers_%s goto reply_%s", askerReplied, g.name, g.name),
			fmt.Sprintf("goto begin_%s", g.name),
		},
	)
	add("reply", g.anything(securitygroup.In, destination, "accept"), g.allowed(securitygroup.In, answering, "accept"), []string{"goto begin_" + g.name})
	add("begin",
		g.anything(securitygroup.Out, destination, "goto note_"+g.name),
		g.allowed(securitygroup.Out, leaving, "goto note_"+g.name),
		[]string{"drop"},
	)
	add("ping",
		[]string{
			fmt.Sprintf("%s %s @askers_%s accept", isEchoReply, askerReplied, g.name),
			fmt.Sprintf("%s %s @askers_%s accept", isUnreached, askerQuoted, g.name),
			fmt.Sprintf("%s != 0x8 goto pong_%s", "@nh,160,8", g.name),
		},
		g.anything(securitygroup.Out, destination, "goto noteping_"+g.name),
		g.allowed(securitygroup.Out, leavingICMP, "goto noteping_"+g.name),
		[]string{"drop"},
	)
	add("pong", g.anything(securitygroup.Out, destination, "accept"), g.allowed(securitygroup.Out, leavingICMP, "accept"), []string{"drop"})
	add("odd", g.anything(securitygroup.Out, destination, "accept"), []string{"drop"})
}
