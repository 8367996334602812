package main

// cipherGuards: what keeps members' frames within WireGuard on a site with an encrypted underlay. Their tests are pure, since not every kernel has
// WireGuard.
var cipherGuards = []Mutant{
	{
		Guard:   "plain tunnel packets don't come in from the underlay",
		File:    "internal/fabric/plan/cipher.go",
		Find:    "\t\tudp dport 4789 @th,96,24 @vnis drop\n",
		Replace: "",
		Test:    "./internal/fabric/plan TestEncryptedTunnelsAreWithinWireGuard",
	},
	{
		Guard:   "tunnel packets leave through WireGuard only",
		File:    "internal/fabric/plan/cipher.go",
		Find:    "\t\toifname != \"nmwg\" udp dport 4789 @th,96,24 @vnis drop\n",
		Replace: "",
		Test:    "./internal/fabric/plan TestEncryptedTunnelsAreWithinWireGuard",
	},
	{
		Guard:   "no shortcut puts frames on an encrypted underlay in clear",
		File:    "internal/fabric/plan/cipher.go",
		Find:    "cfg.Underlay, seen.UnderlayRules = fabric.Inside(cfg.Underlay), true",
		Replace: "cfg.Underlay, seen.Underlay = fabric.Inside(cfg.Underlay), netip.MustParsePrefix(\"240.0.0.0/4\")",
		Test:    "./internal/fabric/plan TestEncryptedTunnelsAreWithinWireGuard",
	},
	{
		Guard:   "a peer's key is good for its own address only",
		File:    "internal/fabric/plan/cipher.go",
		Find:    "netip.PrefixFrom(fabric.Inside(peer), 32)",
		Replace: "netip.PrefixFrom(fabric.Inside(peer), 4)",
		Test:    "./internal/fabric/plan TestEncryptedTunnelsAreWithinWireGuard",
	},
	{
		Guard:   "the key of a node that left is removed",
		File:    "internal/fabric/plan/cipher.go",
		Find:    "op.Former = append(op.Former, p.PublicKey)",
		Replace: "_ = p",
		Test:    "./internal/fabric/plan TestAPlanOfKeysChangesWhatChanged",
	},
	{
		Guard:   "a node without WireGuard has no tunnel of an encrypted network",
		File:    "internal/fabric/plan/cipher.go",
		Find:    "if cfg.PublicKey == \"\" {",
		Replace: "if cfg.PublicKey == \"none\" {",
		Test:    "./internal/fabric/plan TestWhatCannotBeEncryptedIsRefused",
	},
	{
		Guard:   "a node has encrypted networks or others, not both",
		File:    "internal/fabric/encryption.go",
		Find:    "if n.Encrypted != networks[0].Encrypted {",
		Replace: "if n.Encrypted && !networks[0].Encrypted && len(n.Ports) > 1<<20 {",
		Test:    "./internal/fabric/plan TestWhatCannotBeEncryptedIsRefused",
	},
	{
		Guard:   "two nodes never share an address inside",
		File:    "internal/fabric/encryption.go",
		Find:    "known && other != peer {",
		Replace: "known && other == peer {",
		Test:    "./internal/fabric/plan TestWhatCannotBeEncryptedIsRefused",
	},
	{
		Guard:   "no tunnel leads to a node without a key where the underlay is encrypted",
		File:    "internal/controller/tunnelend.go",
		Find:    "case err == nil && d.networks.encrypted && by.key == \"\":",
		Replace: "case err == nil && d.networks.encrypted && by.key == \"none\":",
		Test:    "./internal/controller TestAnEncryptedSiteReachesNodesByTheirKeysOnly",
	},
	{
		Guard:   "a node without WireGuard gets no members where the underlay is encrypted",
		File:    "internal/situation/situation.go",
		Find:    "agent != nil && agent.WireGuardKey == \"\" {",
		Replace: "agent != nil && agent.WireGuardKey == \"none\" {",
		Test:    "./internal/situation TestANodeWithoutWireGuardIsNotToBePlacedOnWhereTheUnderlayIsEncrypted",
	},
	{
		Guard:   "nodes hear that the networks of their site are encrypted",
		File:    "internal/controller/carried.go",
		Find:    "at.network.Network, at.network.Encrypted = on.network, n.encrypted",
		Replace: "at.network.Network = on.network",
		Test:    "./internal/controller TestAnEncryptedSiteReachesNodesByTheirKeysOnly",
	},
}
