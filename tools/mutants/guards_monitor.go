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
}
