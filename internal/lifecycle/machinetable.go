package lifecycle

import "github.com/nearmetal/nearmetal/api"

// Machines returns the machine of machines: nodes whose power and boot are the site's.
func Machines() Machine[api.MachinePhase] {
	const (
		enrolled, inspecting, off = api.MachineEnrolled, api.MachineInspecting, api.MachineOff
		booting, ready, stopping  = api.MachineBooting, api.MachineReady, api.MachineStopping
		failed, removing          = api.MachineFailed, api.MachineRemoving
	)
	type from = []api.MachinePhase
	return Machine[api.MachinePhase]{
		Name: "machine",
		Phases: []PhaseRule[api.MachinePhase]{
			{Phase: enrolled, Owner: "operator: has it inspected, or powers it on"},
			{Phase: inspecting, Owner: "provisioner wakes it; its boot agent looks at it and reports", Timer: "boot deadline, 15 min, twice, then `failed`"},
			{Phase: off, Owner: "operator: powers it on"},
			{Phase: booting, Owner: "provisioner wakes it; network boot and its boot agent bring it up", Timer: "boot deadline, 15 min, twice, then `failed`"},
			{Phase: ready, Owner: "operator: powers it off"},
			{Phase: stopping, Owner: "agent: powers it off; then the provisioner cuts its power", Timer: "cut after 1 min, or at once with force; `failed` after 5 min"},
			{Phase: failed, Owner: "operator: reads the message, mends it, asks again"},
			{Phase: removing, Owner: "as stopping", Timer: "`failed` after 5 min; removed from there all the same; with force at once where nothing can read or cut its power"},
		},
		Transitions: []Transition[api.MachinePhase]{
			{From: from{""}, To: enrolled, On: "enrolled", Why: "it has a name and an address, and strangers' rules no longer hold for it"},
			{From: from{enrolled, off, failed}, To: inspecting, On: "inspection asked for", Why: "it boots the environment `inspect` and nothing else; one that is ready goes off first, one that is in use is not taken"},
			{From: from{inspecting, enrolled, failed, ready, booting, off}, To: stopping, On: "inspected, or asked to power off", Why: "in-band first: its agent ends what runs; then its power is cut, where that can be done"},
			{From: from{stopping, ready}, To: off, On: "power read as off; or, where it can't be read, told to go off and silent", Why: "unknown is not off: without a word of the BMC or of the machine itself it is not believed"},
			{From: from{failed}, To: off, On: "asked to power off again, as was told when stopping failed", Why: "where nothing can read the power, only the person at the button knows"},
			{From: from{off, enrolled, failed}, To: booting, On: "asked to power on", Why: "a new generation: what the last boot was given is void"},
			{From: from{ready}, To: booting, On: "its firmware asks what to boot, or it was asked to power on, and its agent is silent", Why: "its kernel panicked, it hangs or somebody reset it: nothing of what it ran is left, and it boots in a new generation"},
			{From: from{booting}, To: ready, On: "its agent of this boot is connected and its root is wholly local", Why: "nothing is read from the server any more"},
			{From: from{inspecting, booting, stopping, removing}, To: failed, On: "deadline passed, attempts used up, a health check failed, or the BMC refused for good", Why: "its power stays as it is, so that somebody can look"},
			{From: from{enrolled, inspecting, off, booting, ready, failed}, To: removing, On: "removal asked for", Why: "it goes off before it is forgotten"},
			{From: from{enrolled, off, failed, removing}, To: "", On: "removal asked for, and off or given up", Why: "to this site it is a stranger again"},
		},
	}
}
