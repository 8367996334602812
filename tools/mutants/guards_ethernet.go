package main

// ethernetGuards: what keeps whole machines apart on the switches of an Ethernet.
var ethernetGuards = []Mutant{
	{
		Guard:   "a change that was decided before a later epoch changes no switch",
		File:    "internal/fabric/site/ethernet/openvswitch/openvswitch.go",
		Find:    `"until": "==",`,
		Replace: `"until": "!=",`,
		Test:    "./internal/fabric/site/ethernet/openvswitch TestAChangeThatWasDecidedBeforeALaterEpochChangesNothing",
	},
	{
		Guard:   "a switch refuses an older epoch",
		File:    "internal/fabric/site/ethernet/openvswitch/openvswitch.go",
		Find:    `if err := had.Accept(epoch); err != nil {`,
		Replace: `if err := had.Accept(epoch); err != nil && false {`,
		Test:    "./internal/fabric/site/ethernet/openvswitch TestASwitchRefusesAnOlderEpoch",
	},
	{
		Guard:   "bridges refuse an older epoch",
		File:    "internal/fabric/site/ethernet/linuxbridge/linuxbridge.go",
		Find:    `if err := had.Accept(epoch); err != nil {`,
		Replace: `if err := had.Accept(epoch); err != nil && false {`,
		Test:    "./internal/fabric/site/ethernet/linuxbridge TestBridgesRefuseAnOlderEpoch",
	},
	{
		Guard:   "no switch is changed where one knows a later leader",
		File:    "internal/fabric/site/ethernet/ethernet.go",
		Find:    `if err := r.Epoch.Accept(epoch); err != nil {`,
		Replace: `if err := r.Epoch.Accept(epoch); err != nil && false {`,
		Test:    "./internal/fabric/site/ethernet TestNothingIsChangedWhereOneSwitchKnowsALaterLeader",
	},
	{
		Guard:   "a port is not read before the switch has carried it out",
		File:    "internal/fabric/site/ethernet/openvswitch/openvswitch.go",
		Find:    `if now.root.CurCfg < now.root.NextCfg {`,
		Replace: `if now.root.CurCfg < 0 {`,
		Test:    "./internal/fabric/site/ethernet/openvswitch TestAPortIsNotReadBeforeTheSwitchHasCarriedItOut",
	},
	{
		Guard:   "a port without a network carries no VLAN of others",
		File:    "internal/fabric/site/ethernet/openvswitch/openvswitch.go",
		Find:    `Trunks: set[int]{s.cfg.Parking()}, Protected: true}`,
		Replace: `Protected: true}`,
		Test:    "./internal/fabric/site/ethernet/openvswitch TestFrames",
	},
	{
		Guard:   "ports without a network do not hear each other by tagged frames",
		File:    "internal/fabric/site/ethernet/openvswitch/openvswitch.go",
		Find:    `Trunks: set[int]{s.cfg.Parking()}, Protected: true}`,
		Replace: `Trunks: set[int]{s.cfg.Parking()}}`,
		Test:    "./internal/fabric/site/ethernet/openvswitch TestFrames",
	},
	{
		Guard:   "unused ports of two switches have no VLAN in common",
		File:    "internal/fabric/site/ethernet/settings.go",
		Find:    `api.MaxVLAN + 1 - i`,
		Replace: `api.MaxVLAN + 1`,
		Test:    "./internal/fabric/site/ethernet TestSettingsAreRead",
	},
	{
		Guard:   "isolated ports of two switches have no VLAN in common",
		File:    "internal/fabric/site/ethernet/settings.go",
		Find:    `case taken[vlan] != "":`,
		Replace: `case false:`,
		Test:    "./internal/fabric/site/ethernet TestBadSettingsAreRefusedWithTheReason",
	},
	{
		Guard:   "machines that tenants have do not hear each other where they boot",
		File:    "internal/fabric/site/ethernet/state.go",
		Find:    `ports[p] = State{sw.IsolatedVLAN, true}`,
		Replace: `ports[p] = State{sw.IsolatedVLAN, false}`,
		Test:    "./internal/fabric/site/ethernet/openvswitch TestFrames",
	},
	{
		Guard:   "machines that tenants have do not hear those that nobody has",
		File:    "internal/fabric/site/ethernet/state.go",
		Find:    `ports[p] = State{sw.IsolatedVLAN, true}`,
		Replace: `ports[p] = State{s.ProvisioningVLAN, true}`,
		Test:    "./internal/fabric/site/ethernet/linuxbridge TestFrames",
	},
	{
		Guard:   "a protected port is an isolated one of its bridge",
		File:    "internal/fabric/site/ethernet/linuxbridge/linuxbridge.go",
		Find:    `netlink.LinkSetIsolated(link, want.Protected)`,
		Replace: `netlink.LinkSetIsolated(link, false)`,
		Test:    "./internal/fabric/site/ethernet/linuxbridge TestFrames",
	},
	{
		Guard:   "the machine with the bridges drops what tenants send it",
		File:    "internal/fabric/site/ethernet/linuxbridge/linuxbridge.go",
		Find:    `/rp_filter": "1"}`,
		Replace: `/rp_filter": "0"}`,
		Test:    "./internal/fabric/site/ethernet/linuxbridge TestThisMachineDropsWhatTenantsSendIt",
	},
	{
		Guard:   "an unread provisioning port makes its member neither ready nor lost",
		File:    "internal/situation/fabrics.go",
		Find:    "is not isolated yet: %s\", p.Fabric, p.At, why)\n\t\tcase site.Unread:\n\t\t\tphase, message = api.MemberUnknown,",
		Replace: "is not isolated yet: %s\", p.Fabric, p.At, why)\n\t\tcase site.Unread:\n\t\t\t_, message = api.MemberUnknown,",
		Test:    "./internal/controller TestAWholeMachineIsNotReadyWhileItsProvisioningPortIsOpen",
	},
	{
		Guard: "a link that is up outside every bridge is not clean",
		File:  "internal/fabric/site/ethernet/linuxbridge/linuxbridge.go",
		Find: `		if up {
			return state, "it is on no`,
		Replace: `		if false {
			return state, "it is on no`,
		Test: "./internal/fabric/site/ethernet/linuxbridge TestALinkThatThisMachineHearsIsPutRight",
	},
	{
		Guard:   "ports of a switch that was not told are not clean",
		File:    "internal/fabric/site/ethernet/ethernet.go",
		Find:    `r.Epoch != s.epoch && r.Epoch.Accept(s.epoch) == nil {`,
		Replace: `false {`,
		Test:    "./internal/fabric/site/ethernet TestASilentSwitchKeepsNoOtherFromItsNetworks",
	},
	{
		Guard:   "a port that the settings no longer name is not clean",
		File:    "internal/fabric/site/site.go",
		Find:    `if o.Managed != nil && !o.Managed[at] {`,
		Replace: `if false {`,
		Test:    "./internal/fabric/site/ethernet/linuxbridge TestFrames",
	},
	{
		Guard:   "no network is on a port that machines boot from",
		File:    "internal/fabric/site/ethernet/state.go",
		Find:    `case provisioning && number != Isolated:`,
		Replace: `case false:`,
		Test:    "./internal/fabric/site/ethernet TestNetworksThatTheSwitchesCanNotHaveAreRefused",
	},
	{
		Guard: "a switch is known by its authority",
		File:  "internal/fabric/site/ethernet/openvswitch/ovsdb.go",
		Find: `			if err != nil {
				return fmt.Errorf("the certificate of switch`,
		Replace: `			if err != nil && false {
				return fmt.Errorf("the certificate of switch`,
		Test: "./internal/fabric/site/ethernet/openvswitch TestASwitchIsKnownByItsAuthority",
	},
	{
		Guard:   "a switch whose rules others make keeps nobody apart",
		File:    "internal/fabric/site/ethernet/openvswitch/tables.go",
		Find:    `if len(bridges[0].Controller) > 0 {`,
		Replace: `if false {`,
		Test:    "./internal/fabric/site/ethernet/openvswitch TestASwitchThatIsNotThereIsNamed",
	},
	{
		Guard:   "a tenant's machine is not ready while others hear the port that it booted from",
		File:    "internal/situation/fabrics.go",
		Find:    `for _, p := range f.bootPorts(view, a) {`,
		Replace: `for _, p := range f.bootPorts(view, a)[:0] {`,
		Test:    "./internal/controller TestAWholeMachineIsNotReadyWhileItsProvisioningPortIsOpen",
	},
	{
		Guard:   "a machine that is being given back stays isolated until it is clean",
		File:    "internal/situation/switchports.go",
		Find:    `for a := range c.All() {`,
		Replace: `for a := range c.Held() {`,
		Test:    "./internal/controller TestAWholeMachineIsInItsVLANAndItsProvisioningPortAlone",
	},
	{
		Guard:   "a machine in quarantine stays isolated",
		File:    "internal/situation/switchports.go",
		Find:    `		note(&q.Assignment)`,
		Replace: `		_ = q`,
		Test:    "./internal/controller TestAMachineInQuarantineStaysIsolated",
	},
	{
		Guard:   "a switch port that two machines claim is nobody's",
		File:    "internal/situation/switchports.go",
		Find:    `(saidOf(other, p) || !said && !provisioning && claims(other, p))`,
		Replace: `saidOf(other, p)`,
		Test:    "./internal/situation TestTheSwitchPortsOfAMachineAreItsOperatorsWordOrItsSwitches",
	},
	{
		Guard:   "no machine can open the provisioning port of another one",
		File:    "internal/situation/switchports.go",
		Find:    `!said && !provisioning && claims`,
		Replace: `!said && claims`,
		Test:    "./internal/situation TestTheSwitchPortsOfAMachineAreItsOperatorsWordOrItsSwitches",
	},
	{
		Guard:   "no tenant's kernel is on a switch port for a network of tunnels",
		File:    "internal/placement/assign.go",
		Find:    `if (o.Technology == api.FabricEthernet) == switched {`,
		Replace: `if true {`,
		Test:    "./internal/controller TestAWholeMachineWithoutAManagedPortIsInNoVLAN",
	},
	{
		Guard:   "whole machines without managed ports get no cluster on a VLAN",
		File:    "internal/placement/intern.go",
		Find:    `p.switchPorts >= m.Switched`,
		Replace: `true`,
		Test:    "./internal/controller TestAWholeMachineWithoutAManagedPortIsInNoVLAN",
	},
	{
		Guard: "no network has a VLAN that switches do not leave to the site",
		File:  "internal/controller/fabricnumber.go",
		Find: `			return false
		}
	}
	return true`,
		Replace: `			return true
		}
	}
	return true`,
		Test: "./internal/controller TestAVLANThatTheSwitchesDoNotHaveIsPassedOver",
	},
	{
		Guard:   "a machine gets no switch port of another one",
		File:    "internal/apiserver/switchports.go",
		Find:    `if m.Name() != name && slices`,
		Replace: `if false && slices`,
		Test:    "./internal/apiserver TestSwitchPortsThatAMachineCanNotHaveAreRefused",
	},
}
