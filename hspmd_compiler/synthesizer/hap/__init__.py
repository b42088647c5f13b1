"""HAP's space and HAP's price (EuroSys'24): its operators, instructions and formulas, searched exactly.

Enters: an unmodified model on the meta device, speeds of devices, one bandwidth for each collective.
Leaves: the cheapest program with its ratios, as HAP counts; what HAP's count leaves out is said with it.
"""
