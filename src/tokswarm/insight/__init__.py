"""What it means: curve, bend, verdict, summary. Pure functions over tables; files only at the edge."""
