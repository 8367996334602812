package lifecycle

import "github.com/nearmetal/nearmetal/api"

// Machines returns the machine of machines: nodes whose power and boot are the site's.
func Machines() Machine[api.MachinePhase] {
	const (
		enrolled, inspecting, off = api.MachineEnrolled, api.MachineInspecting, api.MachineOff
		booting, ready, stopping  = api.MachineBooting, api.MachineReady, api.MachineStopping
		failed, removing          = api.MachineFailed, api.MachineRemoving
		cleaning, warm            = api.MachineCleaning, api.MachineWarm
	)
	type from = []api.MachinePhase
	return Machine[api.MachinePhase]{
		Name: "machine",
		Phases: []PhaseRule[api.MachinePhase]{
			{Phase: enrolled, Owner: "operator: inspects it or powers it on"},
			{Phase: inspecting, Owner: "provisioner wakes it; its boot agent inspects it and reports", Timer: "boot deadline, 15 min, twice, then `failed`"},
			{Phase: cleaning, Owner: "provisioner wakes it; its boot agent erases what a tenant left, and reports", Timer: "boot deadline, 15 min, then 10 min without progress, twice, then `failed`"},
			{Phase: off, Owner: "operator: powers it on"},
			{Phase: warm, Owner: "a member that gets it, or an operator: its boot agent waits, and goes on to what it boots next", Timer: "off after `server --idle-off`, unless it is one of `--warm`; off 30 s after it was heard of last"},
			{Phase: booting, Owner: "provisioner wakes it; network boot and its boot agent bring it up", Timer: "boot deadline, 15 min, twice, then `failed`"},
			{Phase: ready, Owner: "operator: powers it off"},
			{Phase: stopping, Owner: "agent: powers it off; then the provisioner cuts its power", Timer: "cut after 1 min, or at once with force; `failed` after 5 min"},
			{Phase: failed, Owner: "operator: reads the message, fixes the cause, retries"},
			{Phase: removing, Owner: "as stopping", Timer: "`failed` after 5 min, and removed from there; with force at once where its power can't be read or cut"},
		},
		Transitions: []Transition[api.MachinePhase]{
			{From: from{""}, To: enrolled, On: "enrolled", Why: "it has a name and an address, and the rules for unknown machines no longer apply"},
			{From: from{enrolled, off, failed}, To: inspecting, On: "inspection requested, it has been off for a week, or too few machines are warm", Why: "it boots only the environment `inspect`; a ready machine is powered off first, a machine in use is not inspected"},
			{From: from{enrolled, off, failed, warm}, To: cleaning, On: "cleaning requested or a member that had it is gone, and it is off", Why: "it boots only the boot agent, which erases its disks and what firmware and TPM keep; a machine in use is not cleaned"},
			{From: from{inspecting, cleaning}, To: warm, On: "inspected or cleaned, and the site keeps machines warm", Why: "from its boot agent it boots sooner than from off"},
			{From: from{inspecting, cleaning, enrolled, failed, ready, booting, off, warm}, To: stopping, On: "inspected, cleaned, idle, power-off requested, or its member is released", Why: "in-band first: its agent shuts it down; then its power is cut, where that is possible"},
			{From: from{stopping, ready}, To: off, On: "power read as off; or, where power can't be read, ordered off and silent", Why: "unknown is not off: only its BMC or the machine itself can confirm it"},
			{From: from{failed}, To: stopping, On: "heard of again, after the order to go off did not reach it", Why: "its cable was out: a machine whose power nothing can cut goes off by itself only"},
			{From: from{failed}, To: off, On: "operator reports it off: power-off requested again after stopping failed", Why: "where power can't be read, only the person at the power button knows"},
			{From: from{failed}, To: off, On: "released from quarantine, and its power is read as off", Why: "an operator answers for it: nothing proves that it is clean"},
			{From: from{off, enrolled, failed, warm}, To: booting, On: "power-on requested, or a member gets the whole machine", Why: "a new generation: tokens and orders of the last boot are void"},
			{From: from{ready}, To: booting, On: "its agent is silent, and its firmware sends a boot request or power-on is requested", Why: "its kernel panicked, it hangs or was reset: its workload is gone, and it boots in a new generation"},
			{From: from{booting}, To: ready, On: "the agent of this boot is connected, and its root is completely local", Why: "it no longer reads its root from the server"},
			{From: from{inspecting, cleaning, booting, stopping, removing}, To: failed, On: "deadline passed, attempts used up, a health check or a step of a cleaning failed, or the BMC refused permanently", Why: "its power is left unchanged, so that the operator can inspect it"},
			{From: from{ready}, To: failed, On: "it was restarted under the member that has all of it", Why: "nothing is left of the member, which is replaced; once the member is released, the machine is powered off and cleaned"},
			{From: from{off}, To: failed, On: "it was on while the cluster of its member is paused", Why: "what is on its disks may have changed; its member is replaced, and the machine is powered off and cleaned"},
			{From: from{enrolled, inspecting, cleaning, off, warm, booting, ready, failed}, To: removing, On: "removal requested", Why: "it is powered off before its record is removed"},
			{From: from{enrolled, off, failed, removing}, To: "", On: "removal requested, and the machine is off or given up", Why: "the site no longer knows the machine"},
		},
	}
}
