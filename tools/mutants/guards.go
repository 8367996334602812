package main

import "slices"

// guards is the list: every guard of the product that a test must miss when it is gone, by area.
func guards() []Mutant {
	return slices.Concat(
		trustGuards, identityGuards, hostileGuards, tenantGuards, auditGuards, apiGuards, stateGuards, commitGuards, decisionGuards, successionGuards, carryGuards, snapshotGuards, plannerGuards, lifecycleGuards, admissionGuards,
		siteGuards, partGuards, cellGuards, networkGuards, routeGuards, securityGroupGuards, floatingGuards, limitGuards, nameGuards, leaderGuards, agentGuards, memberGuards, outputGuards, fabricGuards, multicastGuards, groupGuards, shortcutGuards, tunnelShortcutGuards, pinGuards, watchGuards, containerGuards, sandboxGuards, machineGuards,
		machineLifeGuards, bootGuards, imageGuards, powerGuards, netbootGuards, buildGuards, hostGuards, treeGuards, vmGuards, rebootGuards, resizeGuards, foreignGuards, homeGuards, consoleGuards, shapeGuards, hostCheckGuards,
		cliGuards, diskspaceGuards, wayoutGuards, streamGuards, simGuards, measureGuards,
	)
}

// trustGuards: who may speak to whom.
var trustGuards = []Mutant{
	{
		Guard:   "a token is compared with what was issued",
		File:    "internal/trust/token.go",
		Find:    `!t.Is(known.SHA256) || !ok`,
		Replace: `!ok`,
		Test:    "./internal/trust TestWrongTokensAreRefused",
	},
	{
		Guard:   "a secret file that others may read is refused",
		File:    "internal/trust/trust.go",
		Find:    `mode&0o077 != 0`,
		Replace: `mode&0o077 != 0 && false`,
		Test:    "./internal/trust TestATokenOthersCanReadIsRefused",
	},
	{
		Guard:   "a client accepts only the CA its token is pinned to",
		File:    "internal/trust/client.go",
		Find:    `sha256.Sum256(cert.RawSubjectPublicKeyInfo) == pin && cert.IsCA`,
		Replace: `cert.IsCA || sha256.Sum256(cert.RawSubjectPublicKeyInfo) == pin`,
		Test:    "./internal/trust TestAClientAcceptsOnlyThePinnedServerByItsName",
	},
	{
		Guard: "a client checks the server's certificate against the pinned CA, not only that the CA was shown",
		File:  "internal/trust/client.go",
		Find: `	if err != nil {
		return fmt.Errorf("%w: %w", ErrWrongServer, err)
	}`,
		Replace: `	_ = err`,
		Test:    "./internal/trust TestAServerThatOnlyShowsThePinnedCAIsRefused",
	},
	{
		Guard:   "a client verifies the name it dialled",
		File:    "internal/trust/client.go",
		Find:    `Intermediates: intermediates, DNSName: host,`,
		Replace: `Intermediates: intermediates,`,
		Test:    "./internal/trust TestAClientAcceptsOnlyThePinnedServerByItsName",
	},
}
