package lifecycle

// The lists below hold one operation of each type, without content. The tests of the handlers go over them, so that a type that is added here
// and nowhere else fails a test, not a site.

// ClusterOperations returns one operation of each type that decision.Apply handles.
func ClusterOperations() []ClusterOperation {
	return []ClusterOperation{
		SetPhase{},
		Need{},
		Hold{},
		Drop{},
		Shelve{},
		TakeOver{},
		Withdraw{},
		MoveEnd{},
		MoveReported{},
		Resize{},
		Resized{},
		ClaimVolumes{},
		VolumesClaimed{},
		NoteDetached{},
		NoteLayers{},
		HoldSnapshot{},
		NoteSnapshot{},
		ForgetSnapshots{},
		RestoreSnapshot{},
		RefuseSnapshotRestore{},
		GiveUp{},
		KeepFiles{},
		Warn{},
		Expire{},
		Release{},
		ReleaseServers{},
		ConfirmClean{},
		NoteProofs{},
		Quarantine{},
		Forget{},
		Emit{},
		WakeAt{},
	}
}

// QuarantineOperations returns one operation of each type that decision.ApplyQuarantine handles.
func QuarantineOperations() []QuarantineOperation {
	return []QuarantineOperation{
		EndQuarantine{}, Emit{},
	}
}

// MachineOperations returns one operation of each type that decision.ApplyMachine handles.
func MachineOperations() []MachineOperation {
	return []MachineOperation{
		EnrollMachine{},
		SetMachinePhase{},
		TakeUp{},
		BeginBoot{},
		BeginStop{},
		PauseTenant{},
		NotePower{},
		NoteUnheard{},
		NoteBoot{},
		NoteInspection{},
		TakeUpClean{},
		TakeUpHold{},
		NoteClean{},
		QuarantineMachine{},
		ReleaseMachine{},
		BeginDuty{},
		EndDuty{},
		DropDuty{},
		NoteDrift{},
		Verified{},
		CleanedAfterTenant{},
		ForgetMachine{},
		Emit{},
		WakeAt{},
	}
}

// MemberOperations returns one operation of each type that the node agent handles.
func MemberOperations() []MemberOperation {
	return []MemberOperation{
		Start{},
		Update{},
		Stop{},
		Pause{},
		Resume{},
		Save{},
		Restore{},
		TakeSnapshot{},
		VerifySnapshot{},
		LayDown{},
		TakeBack{},
		Reboot{},
		ChangeSize{},
		ChangeVolumes{},
		ChangeLimits{},
		ChangeCondition{},
		Clean{},
		Report{},
		ReportClean{},
		Reject{},
		WakeAt{},
	}
}
