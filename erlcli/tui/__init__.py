"""The dashboard: reads run directories, writes only their control folders, imports neither torch nor the engine."""
