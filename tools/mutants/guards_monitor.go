package main

// monitorGuards: what is read of machines is true or unknown, gets in nobody's way, and leads to what the operator asked for and no more.
var monitorGuards = []Mutant{
	{
		Guard:   "a sensor without a reading has no value",
		File:    "internal/machine/power/ipmi/sensors.go",
		Find:    "case answer[1]&unavailable != 0:",
		Replace: "case false:",
		Test:    "./internal/machine/power/ipmi TestAReadingThatIsNotAvailableIsNotZero",
	},
	{
		Guard:   "a sensor whose part is off has no value",
		File:    "internal/machine/power/redfish/sensors.go",
		Find:    "s.Value, s.Message = nil, ",
		Replace: "s.State, s.Message = api.SensorOK, ",
		Test:    "./internal/machine/power/redfish TestTheOlderResourcesThermalAndPowerAreRead",
	},
	{
		Guard:   "a poll gives way to an order of power",
		File:    "internal/machine/power/gate.go",
		Find:    "		l.poll(ErrYielded)",
		Replace: "		_ = l.poll",
		Test:    "./internal/machine/power TestAPollGivesWayToAnOrder",
	},
	{
		Guard:   "a refused password is not tried again for sensors",
		File:    "internal/machine/sensors/poller.go",
		Find:    "if m.reader != nil && !m.refused {",
		Replace: "if m.reader != nil {",
		Test:    "./internal/machine/sensors TestARefusedPasswordIsNotTriedAgain",
	},
	{
		Guard:   "a BMC that can't be read is not shown as well",
		File:    "internal/machine/sensors/poller.go",
		Find:    "next.State, next.Message = api.SensorUnavailable, err.Error()",
		Replace: "next.Message = err.Error()",
		Test:    "./internal/machine/sensors TestABMCThatCanNotBeReadIsUnavailableAndKeepsItsLastReading",
	},
	{
		Guard:   "readings of a machine are for administrators",
		File:    "internal/apiserver/machinejoin.go",
		Find:    "out.Sensors = withoutReadings(out.Sensors)",
		Replace: "_ = withoutReadings",
		Test:    "./internal/apiserver TestNodesShowTheirMachinesAndReadersNotHowToReachTheirSwitches",
	},
	{
		Guard:   "an entry of a BMC's log is told by one of two readings",
		File:    "internal/state/machinelog.go",
		Find:    ", {Key: prefixMachineLog + base.Name(), Revision: base.logRevision},",
		Replace: ",",
		Test:    "./internal/state TestAnEntryOfABMCsLogIsToldByOneOfTwoReadings",
	},
	{
		Guard:   "the log of an IPMI BMC is read on from the last entry",
		File:    "internal/machine/power/ipmi/sel.go",
		Find:    "next = known.next",
		Replace: "next = firstEntry",
		Test:    "./internal/machine/power/ipmi TestEachEntryOfASimulatedBMCsLogIsReadOnce",
	},
	{
		Guard:   "entries of a Redfish log with one time are told apart",
		File:    "internal/machine/power/redfish/log.go",
		Find:    "at.Equal(after.At) && slices.Contains(after.IDs, e.ID)",
		Replace: "at.Equal(after.At)",
		Test:    "./internal/machine/power/redfish TestEachEntryOfALogIsReadOnceInWhateverOrderItIs",
	},
	{
		Guard:   "a log that was never read begins at its end",
		File:    "internal/machine/power/ipmi/sel.go",
		Find:    "if after.Log != logName || ",
		Replace: "if ",
		Test:    "./internal/machine/power/ipmi TestEachEntryOfASimulatedBMCsLogIsReadOnce",
	},
}
